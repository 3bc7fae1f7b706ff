#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "tools/bench/cases/session.h"
#include "tools/bench/workload/settings.h"

namespace tutti::bench {

/// Options that only some cases take.
enum OptionGroup : unsigned {
  kSizes = 1,       // --bytes --factor --plot
  kDtype = 2,       // --dtype
  kOp = 4,          // --op
  kRoot = 8,        // --root
  kPlacement = 16,  // --place
  kTiming = 32,     // --warmup --repetitions --iterations --repetition-ms
  kSet = 64,        // --set --elements
  kBackward = 128,  // --backward-ms
  kSteps = 256,     // --steps
  kCalls = 512,     // --calls --polled
  kFresh = 1024     // --repetitions, each in fresh processes
};

/// A row of the table of cases. A new case is one file with its function and one row in cases.cc.
struct Case {
  std::string_view name, about;
  unsigned options = 0;
  std::vector<Way> ways;  // the ways that the user may choose; the first is the default
  /// Every rank calls it. Returns true if every checked result was right.
  bool (*run)(Session& session) = nullptr;
  /// More text for --help: how the figures are measured.
  std::string_view details = {};
};

std::span<const Case> all_cases();
/// Returns the case of this name. Otherwise throws Error(invalid_argument) that suggests the
/// nearest name.
const Case& find_case(std::string_view name);

bool run_collective(Session& session);
bool run_latency(Session& session);
bool run_gradients(Session& session);
bool run_overlap(Session& session);
bool run_steady(Session& session);
bool run_create(Session& session);
bool run_fused_optimizer(Session& session);
bool run_sharded(Session& session);
bool run_kernels(Session& session);
bool run_bare_device(Session& session);
bool run_device(Session& session);
bool run_shared_device(Session& session);

}  // namespace tutti::bench
