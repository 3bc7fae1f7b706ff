// Arbitrary files that may be gzipped.

#include "tests/fuzz/files/dataset.h"
#include "tests/fuzz/files/memory_file.h"

namespace tutti::fuzz {
namespace {

constexpr size_t kMostRead = 1 << 20;

bool parse_gzip(std::string_view input) {
  const MemoryFile file(input);
  const auto bytes = nn::read_file(file.path(), kMostRead);
  require(bytes.size() <= kMostRead, "more was read than may be");
  return !bytes.empty();
}

std::vector<std::string> seeds_of_gzip() {
  return {"plain", gzipped("packed"), gzipped("first") + gzipped("second"),
          gzipped(std::string(5000, 'x'))};
}

const Registered registered_gzip({.name = "gzip",
                                  .parse = parse_gzip,
                                  .seeds = seeds_of_gzip,
                                  .most_bytes = kReaderBytes,
                                  .most_bytes_per_byte = kMostUnpacked});

}  // namespace
}  // namespace tutti::fuzz
