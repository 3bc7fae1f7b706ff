#include "tutti/adapters/nn/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "tutti/adapters/checkpoint/durable_file.h"
#include "tutti/adapters/checkpoint/manifest.h"
#include "tutti/adapters/checkpoint/part_reader.h"
#include "tutti/base/error.h"
#include "tutti/base/temporary_file.h"
#include "tutti/base/text.h"
#include "tutti/tensor/host_copy.h"

namespace tutti::nn {

namespace {

Error damaged(const std::string& file, const std::string& what) {
  return {ErrorCode::corrupt_data, fmt::format("checkpoint \"{}\": {}", file, what)};
}

std::string header_of(const std::string& file, const Checkpoint& checkpoint) {
  std::vector<FilePart> parts;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (name == kMetadataName)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("checkpoint \"{}\": a tensor cannot be named \"{}\", which is the "
                              "place of words; give it another name",
                              file, name))
          .with_tensor(name);
    parts.push_back({name, tensor.shape(), tensor.dtype(), {0, tensor.count()}});
  }
  return safetensors_header(parts, checkpoint.words);
}

// The file that is to take the place of `file`; gone again unless it did.
class Draft {
 public:
  explicit Draft(std::string file)
      : file_(std::move(file)), name_(make_draft(file_)), out_(name_) {}
  ~Draft() {
    if (!finished_) ::unlink(name_.c_str());
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  void write(const void* data, uint64_t bytes) { out_.write(data, bytes); }
  // Only a draft that is whole on the disk may take the old file's place.
  void finish() {
    out_.finish();
    if (std::rename(name_.c_str(), file_.c_str()) != 0)
      throw system_error(fmt::format("cannot finish \"{}\"", file_), errno);
    finished_ = true;
    const auto folder = std::filesystem::path(file_).parent_path();
    sync_folder(folder.empty() ? "." : folder.string());
  }

 private:
  static std::string make_draft(const std::string& file) {
    auto made = make_temporary_file(AT_FDCWD, file + ".", ".draft", 0644);
    if (!made.file) throw system_error(fmt::format("cannot write \"{}\"", made.name), made.error);
    return std::move(made.name);
  }

  const std::string file_, name_;
  DurableFile out_;
  bool finished_ = false;
};

}  // namespace

void Checkpoint::write(const std::string& file) const {
  const std::string header = header_of(file, *this);
  Draft draft(file);
  draft.write(header.data(), header.size());
  for (const auto& [name, tensor] : tensors) {
    const auto host = on_host(tensor);
    draft.write(host.data(), static_cast<uint64_t>(host.bytes()));
  }
  draft.finish();
}

Checkpoint Checkpoint::read(const std::string& file) {
  const PartReader source(file);
  const auto first = source.text(0, std::min<uint64_t>(sizeof(uint64_t), source.bytes()));
  const auto header = source.text(0, Manifest::header_bytes(file, first, source.bytes()));
  const auto manifest = Manifest::of_header(file, header, source.bytes());
  Checkpoint checkpoint;
  checkpoint.words = manifest.words;
  for (const auto& [name, entry] : manifest.tensors) {
    const Tensor tensor(entry.shape, entry.dtype);
    source.read(entry.parts[0].offset, tensor.data(), static_cast<uint64_t>(tensor.bytes()));
    checkpoint.tensors.emplace(name, tensor);
  }
  return checkpoint;
}

void save_training(const std::string& file, const std::vector<Parameter>& parameters,
                   const std::vector<NamedState>& optimizer_state, const LoaderPosition& position) {
  Checkpoint checkpoint;
  for (const auto& parameter : parameters)
    checkpoint.tensors.emplace("parameter." + parameter.name, parameter.value);
  for (const auto& state : optimizer_state)
    checkpoint.tensors.emplace("optimizer." + state.name, state.tensor);
  checkpoint.words = {{"epoch", std::to_string(position.epoch)},
                      {"step", std::to_string(position.step)},
                      {"order", std::to_string(position.order)}};
  if (position.consumed >= 0) checkpoint.words["consumed"] = std::to_string(position.consumed);
  checkpoint.write(file);
}

LoaderPosition load_training(const std::string& file, const std::vector<Parameter>& parameters,
                             const std::vector<NamedState>& optimizer_state) {
  const auto checkpoint = Checkpoint::read(file);
  std::vector<std::pair<Tensor, Tensor>> copies;  // from, to
  const auto want = [&](const std::string& name, const Tensor& to) {
    const auto found = checkpoint.tensors.find(name);
    if (found == checkpoint.tensors.end())
      throw damaged(file, fmt::format("\"{}\" is missing", name));
    if (found->second.shape() != to.shape() || found->second.dtype() != to.dtype())
      throw damaged(
          file, fmt::format("\"{}\" is {}{}, expected {}{}", name, to_string(found->second.dtype()),
                            found->second.shape().to_string(), to_string(to.dtype()),
                            to.shape().to_string()));
    copies.emplace_back(found->second, to);
  };
  for (const auto& parameter : parameters) want("parameter." + parameter.name, parameter.value);
  for (const auto& state : optimizer_state) want("optimizer." + state.name, state.tensor);
  const auto number = [&](const char* name) {
    const auto found = checkpoint.words.find(name);
    const auto value = found == checkpoint.words.end()
                           ? std::nullopt
                           : parse_integer(found->second, 0, int64_t{1} << 62);
    if (!value) throw damaged(file, fmt::format("the {} is missing", name));
    return *value;
  };
  LoaderPosition position{.epoch = number("epoch"), .step = number("step")};
  if (checkpoint.words.contains("consumed")) position.consumed = number("consumed");
  // The first version did not tell it.
  position.order = checkpoint.words.contains("order") ? number("order") : 1;
  for (const auto& [from, to] : copies) copy_from_host(to, from.data());
  return position;
}

}  // namespace tutti::nn
