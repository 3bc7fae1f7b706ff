#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::bench {

struct Gradient {
  std::string name;
  int64_t count = 0;  // elements, f32
};

/// Returns the gradients of a model in the order of its layers. Three sets are built in: resnet50,
/// gpt2 and small1000. Any other name is a CSV file (a heading, then index,name,numel,... in each
/// line). `elements` above zero replaces every count. Throws Error(invalid_argument | io |
/// corrupt_data).
std::vector<Gradient> load_gradient_set(const std::string& name, int64_t elements = 0);

/// `origin` is for error messages. Throws Error(corrupt_data) that names the line.
std::vector<Gradient> parse_gradient_set(std::string_view csv, const std::string& origin);

/// A gradient file that is compiled in.
struct BuiltinSet {
  std::string_view name, csv;
};
/// Returns the files of benchmarks/data/gradients. The function is generated from them.
std::vector<BuiltinSet> builtin_gradient_sets();

}  // namespace tutti::bench
