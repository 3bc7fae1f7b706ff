#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::simulation {

/// A step that all ranks of a simulated job run together, one step after another.
struct LifeStep {
  enum class Kind : uint8_t { work, split, shrink, renew } kind = Kind::work;
  double seconds = 0;            // of work; differs a little from rank to rank
  std::vector<int> colors = {};  // of a split: a color for each rank, repeated in larger
                                 // communicators
};

/// A fault of a simulated job. Times are in seconds.
struct LifeFault {
  enum class Kind : uint8_t {
    kill,
    stop,
    fail_to_connect,
    slow_store,
    store_ends
  } kind = Kind::kill;
  enum class When : uint8_t { at, calls, after } when = When::at;
  double at = 0;       // since the beginning, or since the fault before this one
  int calls = 0;       // calls of the store by that rank since the beginning
  int rank = 0;        // the rank number at launch
  double seconds = 0;  // its duration; of a slow store: the extra time of a call
};

/// The complete input of a run of the life tier.
struct LifeCase {
  int size = 2;
  uint64_t salt = 0;           // seed of delays and ties
  double latency = 50e-6;      // of the store, one way
  double longest = 500e-6;     // a rare latency of the store
  bool polls = false;          // see SimStore::Terms
  double spread = 0;           // seconds until the last rank starts
  double hears = 0.001;        // the longest time until a rank knows what ended its communicator
  double slice = 0;            // seconds for which a connecting rank waits for a key at a time; 0:
                               // until the deadline
  bool split_meets = false;    // before the attempt, the backend's ranks meet too in a split
  bool starts_again = false;   // a killed rank is started again, and all ranks make a new
                               // communicator
  bool writes_deaths = true;   // the launcher writes records of deaths
  double record_delay = 0.01;  // the longest time until it has written one
  double connect_timeout = 20, peer_timeout = 2;
  std::vector<LifeStep> steps;
  std::vector<LifeFault> faults;
};

LifeCase draw_life(uint64_t seed);
std::string to_text(const LifeCase& from);

}  // namespace tutti::simulation
