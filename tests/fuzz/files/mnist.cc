// MNIST: a file of images, and one of labels, in the IDX format.

#include "tests/fuzz/files/dataset.h"
#include "tests/fuzz/files/memory_file.h"

namespace tutti::fuzz {
namespace {

bool parse_mnist(std::string_view input) {
  const MemoryFile images(take_part(input)), labels(input);
  return takes_dataset([&] { return nn::read_mnist(images.path(), labels.path()); });
}

std::string idx(unsigned magic, const std::vector<unsigned>& extents, const std::string& data) {
  std::string text;
  const auto add = [&](unsigned number) {
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(number >> shift);
  };
  add(magic);
  for (const unsigned extent : extents) add(extent);
  return text + data;
}

std::vector<std::string> seeds_of_mnist() {
  const auto images = idx(2051, {2, 3, 3}, std::string(18, '\7'));
  const auto labels = idx(2049, {2}, std::string("\3\11", 2));
  const auto no_images = idx(2051, {0, 28, 28}, ""), no_labels = idx(2049, {0}, "");
  return {as_part(images) + labels, as_part(gzipped(images)) + labels,
          as_part(images) + gzipped(labels), as_part(no_images) + no_labels};
}

const Registered registered_mnist({.name = "mnist",
                                   .parse = parse_mnist,
                                   .seeds = seeds_of_mnist,
                                   .most_bytes = kReaderBytes,
                                   .most_bytes_per_byte = kMostUnpacked});

}  // namespace
}  // namespace tutti::fuzz
