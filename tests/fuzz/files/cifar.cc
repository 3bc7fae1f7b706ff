// CIFAR-10: records of a label and an image.

#include "tests/fuzz/files/dataset.h"
#include "tests/fuzz/files/memory_file.h"

namespace tutti::fuzz {
namespace {

bool parse_cifar(std::string_view input) {
  const MemoryFile file(input);
  return takes_dataset([&] { return nn::read_cifar10({file.path(), file.path()}); });
}

std::vector<std::string> seeds_of_cifar() {
  const std::string record = '\3' + std::string(3 * 32 * 32, '\7');
  return {record, gzipped(record + record)};
}

const Registered registered_cifar({.name = "cifar",
                                   .parse = parse_cifar,
                                   .seeds = seeds_of_cifar,
                                   .most_bytes = kReaderBytes,
                                   .most_bytes_per_byte = kMostUnpacked});

}  // namespace
}  // namespace tutti::fuzz
