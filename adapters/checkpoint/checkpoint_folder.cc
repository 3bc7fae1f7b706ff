#include "tutti/adapters/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>

#include "tutti/adapters/checkpoint/durable_file.h"
#include "tutti/adapters/checkpoint/manifest.h"
#include "tutti/adapters/checkpoint/part_reader.h"
#include "tutti/adapters/checkpoint/stored.h"
#include "tutti/base/error.h"
#include "tutti/base/temporary_file.h"
#include "tutti/base/text.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kDraftSuffix = ".draft";
// A whole checkpoint has this suffix while a new one is about to replace it. It counts as the
// checkpoint until the new one has the checkpoint's name.
constexpr std::string_view kReplacedSuffix = ".replaced";

std::string file_of_rank(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

// Returns a line that describes a tensor. The ranks compare these lines.
std::string described(const PlacedTensor& tensor) {
  const auto& placement = tensor.placement;
  return fmt::format("\"{}\" {}{}{}", tensor.name, to_string(tensor.here.dtype()),
                     placement.shape.to_string(),
                     placement.held == Held::divided ? " divided"
                     : placement.held == Held::own   ? " own"
                                                     : "");
}

// Returns the parts that a rank writes. A rank writes all elements that it alone holds. Tensors
// that all ranks hold are divided in the order of the list, and each rank writes an equal share of
// their bytes. This division follows from the placements, so each rank knows the parts of every
// rank.
std::vector<FilePart> parts_of_rank(const std::vector<PlacedTensor>& tensors, int size, int rank) {
  int64_t all_bytes = 0, before = 0;  // bytes of replicated tensors: all, and those before `tensor`
  for (const auto& tensor : tensors)
    if (tensor.placement.held == Held::replicated) all_bytes += tensor.here.bytes();
  const auto share_begins = [&](int at) {
    return static_cast<int64_t>(static_cast<__int128>(all_bytes) * at / size);
  };
  std::vector<FilePart> parts;
  for (const auto& tensor : tensors) {
    auto range = tensor.placement.of(rank);
    if (tensor.placement.held == Held::replicated) {
      const int64_t each = size_of(tensor.here.dtype()), count = range.end;
      const auto element_at = [&](int64_t byte) {
        return std::clamp<int64_t>((byte - before + each - 1) / each, 0, count);
      };
      range = {element_at(share_begins(rank)), element_at(share_begins(rank + 1))};
      before += tensor.here.bytes();
    } else if (tensor.placement.held == Held::own) {
      range = {range.end * rank, range.end * (rank + 1)};
    }
    if (range.count() > 0)
      parts.push_back({tensor.name, stored_shape(tensor.placement), tensor.here.dtype(), range});
  }
  return parts;
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return {};
  return parse_integer(std::string_view(name).substr(kStepPrefix.size()), 0,
                       std::numeric_limits<int64_t>::max());
}

// Returns the step in a name such as ".step-12.replaced".
std::optional<int64_t> replaced_step_of(const std::string& name) {
  if (!name.starts_with('.') || !name.ends_with(kReplacedSuffix)) return {};
  return step_of(name.substr(1, name.size() - 1 - kReplacedSuffix.size()));
}

bool is_draft(const std::string& name) {
  return name.starts_with(std::string(".") + std::string(kStepPrefix)) &&
         name.ends_with(kDraftSuffix);
}

}  // namespace

struct CheckpointFolder::Saving {
  // A range of elements of a tensor that this rank will write.
  struct Piece {
    FilePart part;
    TensorView here;
  };
  int64_t step = 0;
  std::map<std::string, std::string> words;
  std::vector<PlacedTensor> tensors;  // only names, placements and types are used after a snapshot
  std::vector<Piece> pieces;
  std::string plan;            // must be equal on all ranks
  std::exception_ptr refused;  // the reason why this rank has no plan
};

// A draft is a checkpoint's folder under a temporary name. Only rank 0 has this object. The
// destructor removes the draft, unless it was renamed.
struct CheckpointFolder::Draft {
  explicit Draft(const std::string& folder, int64_t step)
      : lock(folder),
        path(fmt::format("{}/.{}{}.{}{}", folder, kStepPrefix, step, random_name(), kDraftSuffix)) {
  }
  ~Draft() {
    std::error_code left;  // the next save removes what this call could not
    fs::remove_all(path, left);
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  FolderLock lock;
  const std::string path;
};

CheckpointFolder::CheckpointFolder(Communicator& comm, std::string folder,
                                   const CheckpointOptions& options)
    : comm_(comm), folder_(std::move(folder)), options_(options) {
  if (options.keep < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("checkpoints in \"{}\": keep is {}, expected at least 1", folder_,
                            options.keep));
}

CheckpointFolder::~CheckpointFolder() {
  try {
    wait();
  } catch (const std::exception&) {
    // The error is dropped here. A caller who needs it calls wait().
  }
}

std::string CheckpointFolder::place_of(int64_t step) const {
  return fmt::format("{}/{}{}", folder_, kStepPrefix, step);
}

// Returns the name to which an old checkpoint is renamed before it is removed. The name has the
// suffix of drafts (temporary folders), so the next save cleans it up. The name is unused, because
// each save first removes all drafts.
std::string CheckpointFolder::old_place_of(int64_t step) const {
  return fmt::format("{}/.{}{}.old{}", folder_, kStepPrefix, step, kDraftSuffix);
}

std::string CheckpointFolder::replaced_place_of(int64_t step) const {
  return fmt::format("{}/.{}{}{}", folder_, kStepPrefix, step, kReplacedSuffix);
}

CheckpointFolder::Texts CheckpointFolder::agree(const std::string& phase,
                                                const std::function<std::string()>& work) {
  // The answer of a rank is '+' and the text, or '-', the error code and the error's text.
  std::string own;
  try {
    own = "+" + work();
  } catch (const Error& error) {
    own = fmt::format("-{} {}", static_cast<int>(error.code()), error.what());
  } catch (const std::exception& error) {
    own = fmt::format("-{} {}", static_cast<int>(ErrorCode::internal), error.what());
  }
  std::vector<std::vector<std::byte>> all;
  try {
    all = comm_.allgather_bytes(fmt::format("checkpoint {} {} {}", folder_, phase, ++agreements_),
                                std::as_bytes(std::span<const char>(own)));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("checkpoint \"{}\" is given up ({}): {}; the last whole "
                                          "one stays",
                                          folder_, phase, error.what()))
        .with_rank(error.rank());
  }
  Texts texts;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(all[rank].data()), all[rank].size());
    auto& text = texts.back();
    const bool is_fine = text.starts_with('+');
    text.erase(0, 1);
    if (is_fine) continue;
    const auto space = text.find(' ');
    throw Error(
        static_cast<ErrorCode>(std::stoi(text.substr(0, space))),
        fmt::format("checkpoint \"{}\": rank {}: {}", folder_, rank, text.substr(space + 1)))
        .with_rank(static_cast<int>(rank));
  }
  return texts;
}

// Returns the properties of a save that must be equal on all ranks. Throws if this rank's tensors
// cannot be saved.
std::string CheckpointFolder::plan_of(int64_t step, const std::vector<PlacedTensor>& tensors,
                                      const std::map<std::string, std::string>& words) const {
  if (step < 0) throw Error(ErrorCode::invalid_argument, "a step below 0");
  std::string list = fmt::format("step {}", step);
  std::map<std::string, int> names;
  for (const auto& tensor : tensors) {
    check_placed(comm_, tensor);
    if (++names[tensor.name] > 1)
      throw Error(ErrorCode::duplicate_name,
                  fmt::format("two tensors of the checkpoint are named \"{}\"; give each its own",
                              tensor.name))
          .with_tensor(tensor.name);
    list += "\n" + described(tensor);
  }
  for (const auto& [word, value] : words)
    list += fmt::format("\nword {}={}", json_string(word), json_string(value));
  return list;
}

// Sends nothing to other ranks. If a rank cannot save, write() reports that to all of them.
CheckpointFolder::Saving CheckpointFolder::prepare(
    int64_t step, const std::vector<PlacedTensor>& tensors,
    const std::map<std::string, std::string>& words) {
  Saving saving{step, words, tensors, {}, {}, {}};
  try {
    saving.plan = plan_of(step, tensors, words);
  } catch (const Error&) {
    saving.refused = std::current_exception();
    return saving;
  }
  std::map<std::string, const PlacedTensor*> by_name;
  for (const auto& tensor : tensors) by_name[tensor.name] = &tensor;
  for (auto& part : parts_of_rank(tensors, comm_.size(), comm_.rank())) {
    const auto& tensor = *by_name.at(part.name);
    const int64_t first =
        tensor.placement.held == Held::own ? part.range.begin : tensor.placement.here().begin;
    const int64_t from = part.range.begin - first;
    TensorView here(tensor.here.data() + from * size_of(part.dtype), Shape{part.range.count()},
                    part.dtype, tensor.here.device(), tensor.here.stream());
    statistics_.bytes += here.bytes();
    saving.pieces.push_back({std::move(part), std::move(here)});
  }
  return saving;
}

// Replaces pieces by copies in this rank's host memory: all pieces, or only those on a device. If
// that fails, the other ranks learn it in agree_on_plan().
void CheckpointFolder::take_snapshot(Saving& saving, bool of_all) try {
  const auto is_copied = [&](const Saving::Piece& piece) {
    return of_all || piece.here.device().kind != DeviceKind::cpu;
  };
  int64_t bytes = 0;
  for (const auto& piece : saving.pieces)
    if (is_copied(piece)) bytes += piece.here.bytes();
  if (bytes == 0) return;
  // After wait() no thread reads the snapshot any more.
  snapshot_.resize(static_cast<size_t>(bytes));
  auto* to = snapshot_.data();
  for (auto& piece : saving.pieces) {
    if (!is_copied(piece)) continue;
    copy_to_host(to, piece.here);
    piece.here = TensorView(to, piece.here.shape(), piece.here.dtype());
    to += piece.here.bytes();
  }
} catch (const std::exception&) {
  saving.refused = std::current_exception();
}

void CheckpointFolder::agree_on_plan(const Saving& saving) {
  const auto lists = agree("plan", [&] {
    if (saving.refused) std::rethrow_exception(saving.refused);
    return saving.plan;
  });
  for (size_t rank = 1; rank < lists.size(); ++rank) {
    if (lists[rank] == lists[0]) continue;
    const auto expected = split_text(lists[0], '\n'), got = split_text(lists[rank], '\n');
    size_t i = 0;
    while (i < expected.size() && i < got.size() && expected[i] == got[i]) ++i;
    throw Error(ErrorCode::mismatch,
                fmt::format("checkpoint \"{}\": ranks save different things: expected {} as rank "
                            "0, got {} on rank {}",
                            folder_, i < expected.size() ? expected[i] : "nothing more",
                            i < got.size() ? got[i] : "nothing more", rank))
        .with_rank(static_cast<int>(rank));
  }
}

void CheckpointFolder::save(int64_t step, const std::vector<PlacedTensor>& tensors,
                            const std::map<std::string, std::string>& words) {
  const auto begin = Clock::now();
  wait();
  auto saving = prepare(step, tensors, words);
  take_snapshot(saving, false);
  write(saving);
  note_saved(begin);
}

void CheckpointFolder::save_in_background(int64_t step, const std::vector<PlacedTensor>& tensors,
                                          const std::map<std::string, std::string>& words) {
  const auto begin = Clock::now();
  wait();
  auto saving = prepare(step, tensors, words);
  take_snapshot(saving, true);
  const auto shared = std::make_shared<const Saving>(std::move(saving));
  try {
    background_ = std::async(std::launch::async, [this, shared] { write(*shared); });
  } catch (const std::system_error&) {
    write(*shared);  // no thread could be started, and the other ranks wait for this rank's part
  }
  note_saved(begin);
}

void CheckpointFolder::wait() {
  if (background_.valid()) background_.get();
}

void CheckpointFolder::write(const Saving& saving) {
  agree_on_plan(saving);
  std::optional<Draft> draft;  // rank 0's
  const auto drafts = agree("begin", [&]() -> std::string {
    if (comm_.rank() != 0) return "";
    std::error_code status;
    fs::create_directories(folder_, status);
    if (status) throw system_error(fmt::format("cannot make \"{}\"", folder_), status.value());
    draft.emplace(folder_, saving.step);
    settle_replaced();
    fs::create_directory(draft->path, status);
    if (status) throw system_error(fmt::format("cannot make \"{}\"", draft->path), status.value());
    return draft->path;
  });
  const auto reports = agree("parts", [&] { return write_pieces(saving, drafts[0]); });
  agree("end", [&]() -> std::string {
    if (comm_.rank() == 0) finish(saving, reports, draft->path);
    return "";
  });
}

// Returns the file's length and the checksums of its parts, 8 bytes each.
std::string CheckpointFolder::write_pieces(const Saving& saving, const std::string& draft) const {
  std::vector<FilePart> parts;
  for (const auto& piece : saving.pieces) parts.push_back(piece.part);
  const auto file = fmt::format("{}/{}", draft, file_of_rank(comm_.rank()));
  DurableFile out(file);
  const auto header = safetensors_header(parts);
  out.write(header.data(), header.size());
  std::vector<uint64_t> report = {0};
  for (const auto& piece : saving.pieces) {
    const auto bytes = static_cast<size_t>(piece.here.bytes());
    try {
      out.write(piece.here.data(), bytes);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("\"{}\": {}", piece.part.name, error.what()));
    }
    report.push_back(XXH3_64bits(piece.here.data(), bytes));
  }
  out.finish();
  report[0] = out.bytes();
  return {reinterpret_cast<const char*>(report.data()), report.size() * sizeof(uint64_t)};
}

void CheckpointFolder::finish(const Saving& saving, const Texts& reports,
                              const std::string& draft) const {
  Manifest manifest;
  manifest.step = saving.step;
  manifest.words = saving.words;
  for (const auto& tensor : saving.tensors)
    manifest.tensors[tensor.name] = {stored_shape(tensor.placement), tensor.here.dtype(), {}};
  for (int rank = 0; rank < comm_.size(); ++rank) {
    const auto parts = parts_of_rank(saving.tensors, comm_.size(), rank);
    const auto& report = reports[static_cast<size_t>(rank)];
    std::vector<uint64_t> numbers(parts.size() + 1);
    const auto name = file_of_rank(rank);
    struct stat about {};
    // The file is missing if each host has a folder of its own under this name.
    if (report.size() != numbers.size() * sizeof(uint64_t) ||
        ::stat((draft + "/" + name).c_str(), &about) != 0)
      throw Error(ErrorCode::io, fmt::format("the part of rank {} is not in \"{}\"; take a folder "
                                             "that all ranks see",
                                             rank, draft))
          .with_rank(rank);
    std::memcpy(numbers.data(), report.data(), report.size());
    manifest.files.push_back({name, numbers[0]});
    uint64_t offset = safetensors_header(parts).size();
    for (size_t i = 0; i < parts.size(); ++i) {
      manifest.tensors[parts[i].name].parts.push_back(
          {parts[i].range, rank, offset, numbers[i + 1]});
      offset += static_cast<uint64_t>(parts[i].range.count() * size_of(parts[i].dtype));
    }
  }
  const auto text = manifest.to_text();
  DurableFile out(draft + kManifestName);
  out.write(text.data(), text.size());
  out.finish();
  sync_folder(draft);
  put_in_place(draft, place_of(saving.step), replaced_place_of(saving.step));
  sync_folder(folder_);
  settle_replaced();
  remove_old();
}

std::vector<int64_t> CheckpointFolder::steps() const {
  std::vector<int64_t> found;
  std::error_code status;
  for (fs::directory_iterator entry(folder_, status), end; !status && entry != end;
       entry.increment(status))
    for (const auto& step : {step_of(entry->path().filename().string()),
                             replaced_step_of(entry->path().filename().string())})
      if (step) found.push_back(*step);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

// Removes old checkpoints. They are first renamed to drafts, so that no reader sees half of a
// checkpoint.
void CheckpointFolder::remove_old() const {
  const auto all = steps();
  for (size_t i = 0; i + static_cast<size_t>(options_.keep) < all.size(); ++i)
    rename_folder(place_of(all[i]), old_place_of(all[i]));
  remove_drafts();
}

// Requires the folder's lock. If a job ended between two renames, its old checkpoint gets its name
// back. If the new checkpoint already has the name, the old checkpoint becomes a draft by one
// rename, so that no reader sees half of it.
void CheckpointFolder::settle_replaced() const {
  remove_drafts();
  for (const int64_t step : steps()) {
    const auto replaced = replaced_place_of(step), place = place_of(step);
    if (!fs::exists(replaced)) continue;
    rename_folder(replaced, fs::exists(place) ? old_place_of(step) : place);
  }
  remove_drafts();
}

// Requires the folder's lock, so these drafts are of jobs that have ended.
void CheckpointFolder::remove_drafts() const {
  std::vector<fs::path> drafts;
  std::error_code status;
  for (fs::directory_iterator entry(folder_, status), end; !status && entry != end;
       entry.increment(status))
    if (is_draft(entry->path().filename().string())) drafts.push_back(entry->path());
  for (const auto& draft : drafts) {
    fs::remove_all(draft, status);
    if (status)
      throw system_error(fmt::format("cannot remove \"{}\"", draft.string()), status.value());
  }
}

}  // namespace tutti
