#include "tutti/adapters/nn/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
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

void write_all(const std::string& file, int fd, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto written = ::write(fd, at, bytes);
    if (written < 0) throw system_error(fmt::format("cannot write \"{}\"", file), errno);
    at += written;
    bytes -= static_cast<size_t>(written);
  }
}

Error damaged(const std::string& file, const std::string& what) {
  return {ErrorCode::corrupt_data, fmt::format("checkpoint \"{}\": {}", file, what)};
}

Tensor read_tensor(const std::string& file, const std::string& name, const Json& entry,
                   std::span<const std::byte> data) {
  DataType dtype = DataType::f32;
  const auto type = entry.at("dtype").get<std::string>();
  int index = 0;
  while (index < kDataTypeCount && type != kTypes[index]) ++index;
  if (index == kDataTypeCount) throw damaged(file, fmt::format("\"{}\" has dtype {}", name, type));
  dtype = static_cast<DataType>(index);
  const Shape shape(entry.at("shape").get<std::vector<int64_t>>());
  const auto begin = entry.at("data_offsets").at(0).get<uint64_t>();
  const auto end = entry.at("data_offsets").at(1).get<uint64_t>();
  const auto bytes = static_cast<uint64_t>(shape.count() * size_of(dtype));
  if (begin > end || end > data.size() || end - begin != bytes)
    throw damaged(file, fmt::format("\"{}\" lies at {} to {} of {} bytes and should have {}", name,
                                    begin, end, data.size(), bytes));
  Tensor tensor(shape, dtype);
  if (bytes > 0) std::memcpy(tensor.data(), data.data() + begin, bytes);
  return tensor;
}

}  // namespace

void Checkpoint::write(const std::string& file) const {
  Json header = Json::object();
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = static_cast<uint64_t>(tensor.bytes());
    header[name] = {{"dtype", kTypes[static_cast<int>(tensor.dtype())]},
                    {"shape", std::vector<int64_t>(tensor.shape().extents().begin(),
                                                   tensor.shape().extents().end())},
                    {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  header["__metadata__"] = words;
  const std::string text = header.dump();
  const uint64_t length = text.size();

  const std::string draft = fmt::format("{}.{}.draft", file, ::getpid());
  const Descriptor out(::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!out) throw system_error(fmt::format("cannot write \"{}\"", draft), errno);
  write_all(draft, out.get(), &length, sizeof length);
  write_all(draft, out.get(), text.data(), text.size());
  for (const auto& [name, tensor] : tensors)
    write_all(draft, out.get(), tensor.data(), static_cast<size_t>(tensor.bytes()));
  if (::fsync(out.get()) != 0 || ::rename(draft.c_str(), file.c_str()) != 0)
    throw system_error(fmt::format("cannot finish \"{}\"", file), errno);
  const auto folder = std::filesystem::path(file).parent_path();
  const Descriptor directory(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC));
  if (directory) ::fsync(directory.get());
}

Checkpoint Checkpoint::read(const std::string& file) {
  constexpr uint64_t kLongestHeader = 100'000'000;
  const auto bytes = read_file(file);
  uint64_t length = 0;
  if (bytes.size() < sizeof length)
    throw damaged(file, fmt::format("{} bytes are too few", bytes.size()));
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kLongestHeader || length > bytes.size() - sizeof length)
    throw damaged(file, fmt::format("its header should have {} bytes", length));
  const auto* text = reinterpret_cast<const char*>(bytes.data() + sizeof length);
  const auto data = std::span(bytes).subspan(sizeof length + length);
  Checkpoint checkpoint;
  try {
    const auto header = Json::parse(text, text + length);
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__")
        checkpoint.words = entry.get<std::map<std::string, std::string>>();
      else
        checkpoint.tensors.emplace(name, read_tensor(file, name, entry, data));
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
