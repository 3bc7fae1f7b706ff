#pragma once

#include <limits>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/core/watch/death.h"

namespace tutti::simulation {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// A simulated job writes down here what it did, for its judge. Times are in seconds since the
/// beginning.
struct LifeRecord {
  struct Process {
    LaunchedRank who;
    double began = 0;
    double died = kNever;    // it was killed
    double ended = kNever;   // it was killed, or its program is over
    bool finished = false;   // its program came to the last step
    int tries = 0;           // calls of create since one ended well
    int number_in_log = -1;  // of its end, among all ends
    double failed_to_connect = kNever;
    std::vector<std::pair<double, double>> stops = {};
    bool was_in = false;   // a first communicator was made
    std::string why = {};  // it gave up
  };
  /// A call of create, split or shrink, or an attempt of one.
  struct Call {
    enum class Kind : uint8_t { create, split, shrink, attempt } kind = Kind::create;
    int process = 0;
    double began = 0, ended = kNever;
    double limit = 0;  // seconds that it may take, by its options and its deadline
    bool well = false;
    ErrorCode code{};  // if it did not end well
    int rank = -1;     // that the error names, as launched; -1: none
    std::string text = {};
    std::string path = {};                      // of an attempt
    std::vector<LaunchedRank> members = {};     // of what was made
    std::vector<LaunchedRank> candidates = {};  // of a shrink: the members before
    std::vector<int> given_up = {};             // by this rank before a shrink, as launched
    int64_t store_calls = 0;
  };
  std::vector<Process> processes;
  std::vector<Call> calls;
  std::vector<std::string> broken_rules;  // of the world's own: what a rank threw beside an Error
  double store_ended = kNever, slow_until = 0, slow_by = 0;
  double ended = 0;
  size_t keys = 0;  // that are left in the store
  std::vector<std::string> keys_left;
};

}  // namespace tutti::simulation
