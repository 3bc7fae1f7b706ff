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

/// The gradients of a model in the order of its layers. Three sets are built in: resnet50, gpt2 and
/// small1000; anything else is a CSV file (a heading, then index,name,numel,... in each line).
/// `elements` above zero replaces every count. Throws Error(invalid_argument | io | corrupt_data).
std::vector<Gradient> load_gradient_set(const std::string& name, int64_t elements = 0);

/// `origin` is for error messages. Throws Error(corrupt_data) that names the line.
std::vector<Gradient> parse_gradient_set(std::string_view csv, const std::string& origin);

/// A file that is built in.
struct BuiltinSet {
  std::string_view name, csv;
};
/// Generated from benchmarks/data/gradients.
std::vector<BuiltinSet> builtin_gradient_sets();

}  // namespace tutti::bench
