#include "tutti/adapters/nn/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::nn {

namespace {

using Json = nlohmann::json;

// safetensors' names of the element types, by DataType.
constexpr const char* kTypes[kDataTypeCount] = {"F64", "F32", "F16", "BF16", "I8",  "I16", "I32",
                                                "I64", "U8",  "U16", "U32",  "U64", "BOOL"};
// Where safetensors keeps words, among the names of tensors.
constexpr const char* kWords = "__metadata__";

// All of `bytes` or an Error; the system takes and gives at most 2 GiB a call.
void write_all(const std::string& file, int fd, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto written = ::write(fd, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error(fmt::format("cannot write \"{}\"", file), errno);
    at += written;
    bytes -= static_cast<size_t>(written);
  }
}

Error damaged(const std::string& file, const std::string& what) {
  return {ErrorCode::corrupt_data, fmt::format("checkpoint \"{}\": {}", file, what)};
}

// A checkpoint that is being read. Parts are read where they belong, so that what is in memory
// twice is the header only, and nothing is taken to be there that the file is too short for.
class Source {
 public:
  explicit Source(const std::string& file)
      : file_(file), fd_(::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat about {};
    if (!fd_ || ::fstat(fd_.get(), &about) != 0)
      throw system_error(fmt::format("cannot open \"{}\"", file), errno);
    if (!S_ISREG(about.st_mode)) throw damaged(file, "it is no plain file");
    bytes_ = static_cast<uint64_t>(about.st_size);
  }
  const std::string& file() const { return file_; }
  uint64_t bytes() const { return bytes_; }
  void read(uint64_t offset, void* to, size_t bytes) const {
    auto* at = static_cast<char*>(to);
    while (bytes > 0) {
      const auto got = ::pread(fd_.get(), at, bytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw system_error(fmt::format("cannot read \"{}\"", file_), errno);
      if (got == 0)
        throw damaged(file_,
                      fmt::format("it ended at {} of {} bytes while it was read", offset, bytes_));
      at += got;
      offset += static_cast<uint64_t>(got);
      bytes -= static_cast<size_t>(got);
    }
  }

 private:
  const std::string file_;
  const Descriptor fd_;
  uint64_t bytes_ = 0;
};

// `data`: where the tensors' bytes begin.
Tensor read_tensor(const Source& source, const std::string& name, const Json& entry,
                   uint64_t data) {
  const auto& file = source.file();
  const auto type = entry.at("dtype").get<std::string>();
  int index = 0;
  while (index < kDataTypeCount && type != kTypes[index]) ++index;
  if (index == kDataTypeCount) throw damaged(file, fmt::format("\"{}\" has dtype {}", name, type));
  const auto dtype = static_cast<DataType>(index);
  const auto extents = entry.at("shape").get<std::vector<int64_t>>();
  Shape shape;
  int64_t bytes = 0;
  try {
    shape = Shape(extents);
  } catch (const Error& error) {
    throw damaged(file, fmt::format("\"{}\": {}", name, error.what()));
  }
  if (__builtin_mul_overflow(shape.count(), size_of(dtype), &bytes))
    throw damaged(file, fmt::format("\"{}\": {}{} has more bytes than 64 bits count", name,
                                    to_string(dtype), shape.to_string()));
  const auto begin = entry.at("data_offsets").at(0).get<uint64_t>();
  const auto end = entry.at("data_offsets").at(1).get<uint64_t>();
  const uint64_t there = source.bytes() - data;
  if (begin > end || end > there || end - begin != static_cast<uint64_t>(bytes))
    throw damaged(file, fmt::format("\"{}\" lies at {} to {} of {} bytes and should have {}", name,
                                    begin, end, there, bytes));
  Tensor tensor(shape, dtype);
  source.read(data + begin, tensor.data(), static_cast<size_t>(bytes));
  return tensor;
}

std::string header_of(const std::string& file, const Checkpoint& checkpoint) {
  Json header = Json::object();
  uint64_t offset = 0;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (name == kWords)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("checkpoint \"{}\": a tensor cannot be named \"{}\", which is the "
                              "place of words; give it another name",
                              file, name))
          .with_tensor(name);
    const auto bytes = static_cast<uint64_t>(tensor.bytes());
    header[name] = {{"dtype", kTypes[static_cast<int>(tensor.dtype())]},
                    {"shape", std::vector<int64_t>(tensor.shape().extents().begin(),
                                                   tensor.shape().extents().end())},
                    {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  header[kWords] = checkpoint.words;
  try {
    return header.dump();
  } catch (const Json::exception& error) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("checkpoint \"{}\": names and words must be UTF-8 ({})", file, error.what()));
  }
}

// The file that is to take the place of `file`; gone again unless it did.
class Draft {
 public:
  explicit Draft(std::string file)
      : file_(std::move(file)),
        name_(fmt::format("{}.{}.draft", file_, ::getpid())),
        fd_(::open(name_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
    if (!fd_) throw system_error(fmt::format("cannot write \"{}\"", name_), errno);
  }
  ~Draft() {
    if (!finished_) ::unlink(name_.c_str());
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;
  void write(const void* data, size_t bytes) { write_all(name_, fd_.get(), data, bytes); }
  // Only a draft that is whole on the disk may take the old file's place.
  void finish() {
    if (::fsync(fd_.get()) != 0 || ::rename(name_.c_str(), file_.c_str()) != 0)
      throw system_error(fmt::format("cannot finish \"{}\"", file_), errno);
    finished_ = true;
    const auto folder = std::filesystem::path(file_).parent_path();
    const Descriptor directory(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC));
    if (directory) ::fsync(directory.get());
  }

 private:
  const std::string file_, name_;
  const Descriptor fd_;
  bool finished_ = false;
};

}  // namespace

void Checkpoint::write(const std::string& file) const {
  const std::string header = header_of(file, *this);
  const uint64_t length = header.size();
  Draft draft(file);
  draft.write(&length, sizeof length);
  draft.write(header.data(), header.size());
  for (const auto& [name, tensor] : tensors)
    draft.write(tensor.data(), static_cast<size_t>(tensor.bytes()));
  draft.finish();
}

Checkpoint Checkpoint::read(const std::string& file) {
  const Source source(file);
  uint64_t length = 0;
  if (source.bytes() < sizeof length)
    throw damaged(file, fmt::format("{} bytes are too few", source.bytes()));
  source.read(0, &length, sizeof length);
  if (length > source.bytes() - sizeof length)
    throw damaged(file, fmt::format("its header should have {} bytes, {} are there", length,
                                    source.bytes() - sizeof length));
  std::string text(static_cast<size_t>(length), '\0');
  source.read(sizeof length, text.data(), text.size());
  const uint64_t data = sizeof length + length;
  Checkpoint checkpoint;
  try {
    const auto header = Json::parse(text);
    for (const auto& [name, entry] : header.items()) {
      if (name == kWords)
        checkpoint.words = entry.get<std::map<std::string, std::string>>();
      else
        checkpoint.tensors.emplace(name, read_tensor(source, name, entry, data));
    }
  } catch (const Json::exception& error) {
    throw damaged(file, fmt::format("its header is not what it should be ({})", error.what()));
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
                      {"step", std::to_string(position.step)}};
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
  const LoaderPosition position{number("epoch"), number("step")};
  for (const auto& [from, to] : copies)
    if (from.bytes() > 0) std::memcpy(to.data(), from.data(), static_cast<size_t>(from.bytes()));
  return position;
}

}  // namespace tutti::nn
