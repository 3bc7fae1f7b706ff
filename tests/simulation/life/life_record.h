#pragma once

#include <limits>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/core/watch/death.h"

namespace tutti::simulation {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// The record of a simulated job, which its judge reads. Times are in seconds since the beginning.
struct LifeRecord {
  struct Process {
    LaunchedRank who;
    double began = 0;
    double died = kNever;    // when it was killed
    double ended = kNever;   // when it was killed or its program was over
    bool finished = false;   // its program reached the last step
    int tries = 0;           // calls of create since the last one that ended well
    int number_in_log = -1;  // its index in the log of all ends
    double failed_to_connect = kNever;
    std::vector<std::pair<double, double>> stops = {};
    bool was_in = false;   // it was in a first communicator
    std::string why = {};  // the reason why it gave up
  };
  /// A call of create, split or shrink, or an attempt of one.
  struct Call {
    enum class Kind : uint8_t { create, split, shrink, attempt } kind = Kind::create;
    int process = 0;
    double began = 0, ended = kNever;
    double limit = 0;  // the longest time that it may take by its options and its deadline
    bool well = false;
    ErrorCode code{};  // its error, if it did not end well
    int rank = -1;     // the rank that the error names, as launched; -1: none
    std::string text = {};
    std::string path = {};                      // of an attempt: its path
    std::vector<LaunchedRank> members = {};     // of the new communicator
    std::vector<LaunchedRank> candidates = {};  // of a shrink: the members before
    std::vector<int> given_up = {};             // of a shrink: ranks that this one gave up
    int64_t store_calls = 0;
  };
  std::vector<Process> processes;
  std::vector<Call> calls;
  std::vector<std::string> broken_rules;  // exceptions other than Error, and the like
  double store_ended = kNever, slow_until = 0, slow_by = 0;
  double ended = 0;
  size_t keys = 0;  // keys left in the store
  std::vector<std::string> keys_left;
};

}  // namespace tutti::simulation
