// Checkpoints: length, JSON header, offsets, shapes and the tensors' bytes.

#include "tutti/adapters/nn/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/files/memory_file.h"
#include "tests/fuzz/harness.h"

namespace tutti::fuzz {
namespace {

bool parse_checkpoint(std::string_view input) {
  const MemoryFile file(input);
  const auto checkpoint = nn::Checkpoint::read(file.path());
  size_t bytes = 0;
  for (const auto& [name, tensor] : checkpoint.tensors)
    bytes += static_cast<size_t>(tensor.bytes());
  require(bytes <= input.size(), "the tensors of a checkpoint are larger than its file");
  return true;
}

std::string written(const nn::Checkpoint& checkpoint) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("tutti-{}", ::getpid());
  std::filesystem::create_directories(folder);
  checkpoint.write(folder / "checkpoint");
  std::ifstream in(folder / "checkpoint", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  std::filesystem::remove_all(folder);
  return text;
}

std::vector<std::string> seeds_of_checkpoint() {
  nn::Checkpoint words, tensors;
  words.words = {{"epoch", "3"}, {"step", "17"}};
  for (const auto dtype : {DataType::f32, DataType::bf16, DataType::boolean, DataType::i64}) {
    Tensor tensor(Shape{2, 3}, dtype);
    std::memset(tensor.data(), 1, static_cast<size_t>(tensor.bytes()));
    tensors.tensors.emplace(std::string("parameter.") + std::string(to_string(dtype)), tensor);
  }
  tensors.tensors.emplace("empty", Tensor(Shape{0, 7}, DataType::f16));
  tensors.tensors.emplace("scalar", Tensor(Shape{}, DataType::f64));
  tensors.words = words.words;
  return {written({}), written(words), written(tensors)};
}

// A JSON document takes some ten times its text in memory.
const Registered registered_checkpoint({.name = "checkpoint",
                                        .parse = parse_checkpoint,
                                        .seeds = seeds_of_checkpoint,
                                        .most_bytes_per_byte = 256});

}  // namespace
}  // namespace tutti::fuzz
