#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/base/process/process_state.h"
#include "tutti/core/scheduling/entry.h"
#include "tutti/core/threads/door.h"

namespace tutti {

/// Does for a Node what it cannot do itself. The engine implements it, and so does the simulation.
/// The holder of the token calls it, from inside a call of the Node. No function here waits or
/// calls the Node.
class Outside {
 public:
  virtual ~Outside() = default;
  /// Called when these operations are over, with or without an error. Counts them, frees their
  /// entries for the next use, and then ends their Works.
  virtual void finish(std::span<Entry* const> entries, const Error* error) = 0;
  /// Fails every operation that was submitted and is not over.
  virtual void finish_all(const Error& error) = 0;
  /// Called when streams may wait for Works that are not done yet.
  virtual void on_its_way() = 0;
  /// Called when the communicator breaks because of this error. The door is first `breaking`, and
  /// `broken` once nothing touches the program's memory any more.
  virtual void set_door(Door door, const Error& error) = 0;
  /// Called when the first rank that left is known.
  virtual void on_first_departure(int rank) = 0;
  /// Looks in the job's store for deaths until stop_asking(), for Node::kLongestInquiry at most.
  /// The deaths that are found arrive in Node::Batch::deaths.
  virtual void ask_for_deaths() = 0;
  virtual void stop_asking() = 0;
  /// Announces to the launcher that this rank closes because of an error of its own. Returns true
  /// if Node::Batch::is_told will be set, false if no launcher listens.
  virtual bool tell_launcher() = 0;
  /// Returns the state of a rank's process on this host, as the system shows it.
  virtual ProcessState process_of(int rank) = 0;
  virtual void log(LogLevel level, const std::string& line) = 0;
};

}  // namespace tutti
