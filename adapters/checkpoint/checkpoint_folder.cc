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
#include <random>
#include <set>

#include "tutti/adapters/checkpoint/durable_file.h"
#include "tutti/adapters/checkpoint/part_reader.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"
#include "tutti/kernels/convert.h"

namespace tutti {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kDraftSuffix = ".draft";
constexpr const char* kManifestName = "/manifest.json";

std::string file_of_rank(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

// One line a tensor: what ranks compare.
std::string described(const PlacedTensor& tensor) {
  const auto& placement = tensor.placement;
  return fmt::format("\"{}\" {}{}{}", tensor.name, to_string(tensor.here.dtype()),
                     placement.shape.to_string(),
                     placement.held == Held::divided ? " divided"
                     : placement.held == Held::own   ? " own"
                                                     : "");
}

// Of a tensor of which each of so many ranks has its own: they lie one behind another.
Shape shape_of_all(const Shape& own, int64_t ranks) {
  std::vector<int64_t> extents = {ranks};
  extents.insert(extents.end(), own.extents().begin(), own.extents().end());
  return Shape(extents);
}

// As the files hold it.
Shape stored_shape(const Placement& placement) {
  return placement.held == Held::own ? shape_of_all(placement.shape, placement.axis_size)
                                     : placement.shape;
}

// How many ranks' own tensors a checkpoint has where each rank wants its own; 0: one for all.
std::optional<int64_t> ranks_with_their_own(const CheckpointEntry& entry, const Shape& wanted) {
  if (entry.shape == wanted) return 0;
  if (entry.shape.rank() > 0 && entry.shape[0] > 0 &&
      entry.shape == shape_of_all(wanted, entry.shape[0]))
    return entry.shape[0];
  return {};
}

void check_placed(const Communicator& comm, const PlacedTensor& tensor) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::invalid_argument, fmt::format("\"{}\" {}", tensor.name, why))
        .with_tensor(tensor.name);
  };
  const auto& placement = tensor.placement;
  if (tensor.name.empty() || tensor.name == kMetadataName)
    throw refuse("is no name for a tensor in a checkpoint; give it another one");
  if (placement.held == Held::partial_sum)
    throw refuse("is a partial sum, of which no rank has the whole; reduce it first");
  if ((placement.held == Held::divided || placement.held == Held::own) &&
      (placement.axis_size != comm.size() || placement.axis_index != comm.rank()))
    throw refuse(fmt::format("is placed as part {} of {}, expected {} of {}, as the communicator",
                             placement.axis_index, placement.axis_size, comm.rank(), comm.size()));
  if (tensor.here.device().kind != DeviceKind::cpu || !tensor.here.is_row_major())
    throw refuse("is not row-major in host memory; copy it there");
  if (tensor.here.count() != placement.here().count())
    throw refuse(fmt::format("has {} elements here, expected {} by its placement",
                             tensor.here.count(), placement.here().count()));
}

// What a rank writes: what it alone holds, and of what all hold an equal share by bytes, in the
// order of the list. Follows from the placements, so each rank knows it of every rank.
std::vector<FilePart> parts_of_rank(const std::vector<PlacedTensor>& tensors, int size, int rank) {
  int64_t all_bytes = 0, before = 0;  // of replicated tensors
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

bool is_draft(const std::string& name) {
  return name.starts_with(std::string(".") + std::string(kStepPrefix)) &&
         name.ends_with(kDraftSuffix);
}

}  // namespace

// Of another model: a tensor that is missing, left over or different.
void check_wanted(const std::string& place, const Manifest& manifest,
                  const std::vector<PlacedTensor>& tensors, const LoadOptions& options) {
  const auto refuse = [&](const std::string& name, const std::string& what) {
    return Error(ErrorCode::corrupt_data,
                 fmt::format("\"{}\" is of another model: \"{}\" {}", place, name, what))
        .with_tensor(name);
  };
  std::set<std::string> wanted;
  for (const auto& tensor : tensors) {
    wanted.insert(tensor.name);
    const auto found = manifest.tensors.find(tensor.name);
    if (found == manifest.tensors.end()) throw refuse(tensor.name, "is not in it");
    const auto& entry = found->second;
    const bool fits = tensor.placement.held == Held::own
                          ? ranks_with_their_own(entry, tensor.placement.shape).has_value()
                          : entry.shape == tensor.placement.shape;
    if (!fits || entry.dtype != tensor.here.dtype())
      throw refuse(tensor.name, fmt::format("is {}{} there, expected {}{}", to_string(entry.dtype),
                                            entry.shape.to_string(), to_string(tensor.here.dtype()),
                                            tensor.placement.shape.to_string()));
  }
  if (options.partly) return;
  for (const auto& [name, entry] : manifest.tensors)
    if (!wanted.contains(name))
      throw refuse(name, "is in it, and nobody asked for it; to leave it out set partly");
}

// A rank's own tensor: that of its place where as many ranks are there as then, or the one that all
// had; otherwise the mean of all of them, as an exchange gives, and of whole numbers one of them.
std::vector<std::byte> read_own(PartFiles& files, const CheckpointEntry& entry,
                                const PlacedTensor& tensor) {
  const auto& placement = tensor.placement;
  const auto ranks = ranks_with_their_own(entry, placement.shape).value_or(0);
  const int64_t count = placement.shape.count();
  const auto of_rank = [&](int64_t rank) {
    return files.read(tensor.name, {rank * count, (rank + 1) * count});
  };
  if (ranks == 0) return of_rank(0);
  if (ranks == placement.axis_size || !is_float(entry.dtype))
    return of_rank(placement.axis_index % ranks);
  std::vector<double> sum(static_cast<size_t>(count)), one(sum.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto bytes = of_rank(rank);
    cast(entry.dtype, bytes.data(), DataType::f64, reinterpret_cast<std::byte*>(one.data()), count);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i] / static_cast<double>(ranks);
  }
  std::vector<std::byte> mean(static_cast<size_t>(count * size_of(entry.dtype)));
  cast(DataType::f64, reinterpret_cast<const std::byte*>(sum.data()), entry.dtype, mean.data(),
       count);
  return mean;
}

// What rank 0 has while a checkpoint is written; gone with it, unless it has got its name.
struct CheckpointFolder::Draft {
  explicit Draft(const std::string& folder, int64_t step)
      : lock(folder),
        path(fmt::format("{}/.{}{}.{:08x}{}", folder, kStepPrefix, step, std::random_device{}(),
                         kDraftSuffix)) {}
  ~Draft() {
    std::error_code left;  // the next save removes what this could not
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
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("checkpoints in \"{}\": keep is {}, want at least 1", folder_, options.keep));
}

CheckpointFolder::~CheckpointFolder() {
  try {
    wait();
  } catch (const std::exception&) {
    // Who wants to know calls wait().
  }
}

std::string CheckpointFolder::place_of(int64_t step) const {
  return fmt::format("{}/{}{}", folder_, kStepPrefix, step);
}

CheckpointFolder::Texts CheckpointFolder::agree(const std::string& phase,
                                                const std::function<std::string()>& work) {
  // An error travels as its number behind a letter, an ordinary text behind another.
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

CheckpointFolder::Saving CheckpointFolder::prepare(
    int64_t step, const std::vector<PlacedTensor>& tensors,
    const std::map<std::string, std::string>& words) {
  Saving saving{step, words, tensors, {}};
  const auto lists = agree("plan", [&] {
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
  std::map<std::string, const PlacedTensor*> by_name;
  for (const auto& tensor : tensors) by_name[tensor.name] = &tensor;
  for (auto& part : parts_of_rank(tensors, comm_.size(), comm_.rank())) {
    const auto& tensor = *by_name.at(part.name);
    const int64_t first =
        tensor.placement.held == Held::own ? part.range.begin : tensor.placement.here().begin;
    const int64_t from = part.range.begin - first;
    const auto* data = tensor.here.data() + from * size_of(part.dtype);
    statistics_.bytes += part.range.count() * size_of(part.dtype);
    saving.pieces.push_back({std::move(part), data});
  }
  return saving;
}

void CheckpointFolder::save(int64_t step, const std::vector<PlacedTensor>& tensors,
                            const std::map<std::string, std::string>& words) {
  const auto begin = Clock::now();
  wait();
  write(prepare(step, tensors, words));
  note_saved(begin);
}

void CheckpointFolder::save_in_background(int64_t step, const std::vector<PlacedTensor>& tensors,
                                          const std::map<std::string, std::string>& words) {
  const auto begin = Clock::now();
  wait();
  auto saving = prepare(step, tensors, words);
  const auto bytes_of = [](const Piece& piece) {
    return static_cast<size_t>(piece.part.range.count() * size_of(piece.part.dtype));
  };
  size_t bytes = 0;
  for (const auto& piece : saving.pieces) bytes += bytes_of(piece);
  snapshot_.resize(bytes);  // no thread writes from it after wait()
  auto* to = snapshot_.data();
  for (auto& piece : saving.pieces) {
    std::memcpy(to, piece.data, bytes_of(piece));
    piece.data = to;
    to += bytes_of(piece);
  }
  background_ =
      std::async(std::launch::async, [this, saving = std::move(saving)] { write(saving); });
  note_saved(begin);
}

void CheckpointFolder::wait() {
  if (background_.valid()) background_.get();
}

void CheckpointFolder::write(const Saving& saving) {
  std::optional<Draft> draft;  // rank 0's
  const auto drafts = agree("begin", [&]() -> std::string {
    if (comm_.rank() != 0) return "";
    std::error_code status;
    fs::create_directories(folder_, status);
    if (status) throw system_error(fmt::format("cannot make \"{}\"", folder_), status.value());
    draft.emplace(folder_, saving.step);
    remove_drafts();
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
    const auto bytes = static_cast<size_t>(piece.part.range.count() * size_of(piece.part.dtype));
    try {
      out.write(piece.data, bytes);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("\"{}\": {}", piece.part.name, error.what()));
    }
    report.push_back(XXH3_64bits(piece.data, bytes));
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
    // A folder of the same name on each host is not one folder.
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
  put_in_place(draft, place_of(saving.step));
  sync_folder(folder_);
  remove_old();
}

std::vector<int64_t> CheckpointFolder::steps() const {
  std::vector<int64_t> found;
  std::error_code status;
  for (fs::directory_iterator entry(folder_, status), end; !status && entry != end;
       entry.increment(status))
    if (const auto step = step_of(entry->path().filename().string())) found.push_back(*step);
  std::sort(found.begin(), found.end());
  return found;
}

// Under a draft's name first, so that none is seen half.
void CheckpointFolder::remove_old() const {
  const auto all = steps();
  for (size_t i = 0; i + static_cast<size_t>(options_.keep) < all.size(); ++i)
    put_in_place(place_of(all[i]),
                 fmt::format("{}/.{}{}.old{}", folder_, kStepPrefix, all[i], kDraftSuffix));
  remove_drafts();
}

// With the folder's lock held, so they are of jobs that ended.
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

// Rank 0's choice: the file or folder, a line feed, and its header or manifest. Empty: none there.
std::string CheckpointFolder::choose(const LoadOptions& options) const {
  struct stat about {};
  if (::stat(folder_.c_str(), &about) == 0 && S_ISREG(about.st_mode)) {
    const PartReader file(folder_);
    const auto first = file.text(0, std::min<uint64_t>(sizeof(uint64_t), file.bytes()));
    return folder_ + "\n" + file.text(0, Manifest::header_bytes(folder_, first, file.bytes()));
  }
  const auto all = steps();
  if (all.empty() && !options.step) return "";
  if (options.step && !std::binary_search(all.begin(), all.end(), *options.step))
    throw Error(ErrorCode::io, fmt::format("there is no step {}; there are steps {}", *options.step,
                                           fmt::join(all, ", ")));
  const auto place = place_of(options.step.value_or(all.empty() ? 0 : all.back()));
  const PartReader file(place + kManifestName);
  return place + "\n" + file.text(0, file.bytes());
}

std::optional<LoadedCheckpoint> CheckpointFolder::load(const std::vector<PlacedTensor>& tensors,
                                                       const LoadOptions& options) {
  wait();
  const auto choice =
      agree("choice", [&] { return comm_.rank() == 0 ? choose(options) : std::string(); })[0];
  if (choice.empty()) return {};
  const auto line = choice.find('\n');
  const auto place = choice.substr(0, line), text = choice.substr(line + 1);
  const bool is_file = place == folder_;
  Manifest manifest;
  std::vector<std::vector<std::byte>> read;
  agree("read", [&]() -> std::string {
    for (const auto& tensor : tensors) check_placed(comm_, tensor);
    manifest = is_file ? Manifest::of_header(place, text, PartReader(place).bytes())
                       : Manifest::parse(place, text);
    check_wanted(place, manifest, tensors, options);
    PartFiles files(is_file ? "" : place + "/", manifest);
    for (const auto& tensor : tensors)
      read.push_back(tensor.placement.held == Held::own
                         ? read_own(files, manifest.tensors.at(tensor.name), tensor)
                         : files.read(tensor.name, tensor.placement.here()));
    return "";
  });
  for (size_t i = 0; i < tensors.size(); ++i)
    if (!read[i].empty()) std::memcpy(tensors[i].here.data(), read[i].data(), read[i].size());
  return LoadedCheckpoint{manifest.step, static_cast<int>(manifest.files.size()), manifest.words};
}

}  // namespace tutti
