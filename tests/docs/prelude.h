#pragma once

/// Names that the C++ statements on the pages use without a declaration: see docs/start.md.

#include <tutti/tutti.h>

#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tutti::docs {

struct NamedGradient {
  std::string name;
  std::vector<float> value, gradient;
};

inline void compute_gradient(NamedGradient& parameter) { parameter.gradient.assign(8, 1); }

/// The variables around one block of statements.
struct Surroundings {
  std::unique_ptr<Communicator> comm = Communicator::create();
  std::vector<NamedGradient> parameters = {{"first", {}, {}}, {"second", {}, {}}};
  std::vector<float> gradient = std::vector<float>(16, 1);
  float loss = 1;
};

}  // namespace tutti::docs
