#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::simulation {

/// The ranks of a simulated job do these together, one after the other.
struct LifeStep {
  enum class Kind : uint8_t { work, split, shrink, renew } kind = Kind::work;
  double seconds = 0;            // of work, which differs a little from rank to rank
  std::vector<int> colors = {};  // of a split, a rank; they come again in larger communicators
};

/// This happens to them. Times are in seconds.
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
  int calls = 0;       // of the store by that rank since the beginning
  int rank = 0;        // as which it was launched
  double seconds = 0;  // how long it lasts; how much slower the store is
};

/// All that a run of the life tier depends on.
struct LifeCase {
  int size = 2;
  uint64_t salt = 0;          // of delays and ties
  double latency = 50e-6;     // of the store, one way
  double longest = 500e-6;    // seldom
  bool polls = false;         // see SimStore::Terms
  double spread = 0;          // until the last rank starts
  double hears = 0.001;       // until a rank knows of what ended its communicator, at most
  double slice = 0;           // a rank that connects asks for so long at a time; 0: to the deadline
  bool split_meets = false;   // a split also has a part of the backend's, before the attempt
  bool starts_again = false;  // who died is started again, and all make a new communicator
  bool writes_deaths = true;  // the launcher does
  double record_delay = 0.01;  // until it has, at most
  double connect_timeout = 20, peer_timeout = 2;
  std::vector<LifeStep> steps;
  std::vector<LifeFault> faults;
};

LifeCase draw_life(uint64_t seed);
std::string to_text(const LifeCase& from);

}  // namespace tutti::simulation
