#pragma once

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tutti::benchmarks {

/// Returns the element counts in a file with the columns "index,name,numel,shape", in the order of
/// the layers.
inline std::vector<int64_t> read_gradient_set(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::invalid_argument(path + ": cannot be read; give --set a CSV file");
  std::string line;
  std::getline(file, line);
  if (line != "index,name,numel,shape")
    throw std::invalid_argument(path + ": its first line is not index,name,numel,shape");
  std::vector<int64_t> counts;
  while (std::getline(file, line)) {
    const auto name = line.find(','), count = line.find(',', name + 1);
    if (name == std::string::npos || count == std::string::npos)
      throw std::invalid_argument(path + ": not a row of it: " + line);
    counts.push_back(std::stoll(line.substr(count + 1)));
  }
  if (counts.empty()) throw std::invalid_argument(path + ": has no rows");
  return counts;
}

/// Returns "resnet50" for "folder/resnet50.csv".
inline std::string set_name(const std::string& path) {
  const auto begin = path.find_last_of('/') + 1;
  return path.substr(begin, path.find_last_of('.') - begin);
}

}  // namespace tutti::benchmarks
