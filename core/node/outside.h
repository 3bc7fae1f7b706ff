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

/// Services that a Node needs from its surroundings. The engine and the simulation implement it.
/// The Node calls it from inside its own functions. No function of Outside waits or calls the Node.
class Outside {
 public:
  virtual ~Outside() = default;
  /// Called when these operations have ended, with or without an error. Counts the operations,
  /// frees the entries for the next use, and then ends the Works.
  virtual void finish(std::span<Entry* const> entries, const Error* error) = 0;
  /// Fails every submitted operation that has not ended.
  virtual void finish_all(const Error& error) = 0;
  /// Called when streams may now wait for Works that are not done yet.
  virtual void on_its_way() = 0;
  /// Called when the communicator breaks because of `error`. The door decides whether new calls are
  /// accepted. It is first `breaking`, and `broken` once nothing uses the program's memory any
  /// more.
  virtual void set_door(Door door, const Error& error) = 0;
  /// Called when it is known which rank left first.
  virtual void on_first_departure(int rank) = 0;
  /// Reads the deaths in the job's store until stop_asking(), for at most Node::kLongestInquiry.
  /// The deaths arrive in Node::Batch::deaths.
  virtual void ask_for_deaths() = 0;
  virtual void stop_asking() = 0;
  /// Announces to the launcher that this rank closes because of its own error. Returns true if
  /// Node::Batch::is_told will be set later, false if there is no launcher to tell.
  virtual bool tell_launcher() = 0;
  /// Returns the state of the process of `rank`, which is on this host, as the system shows it.
  virtual ProcessState process_of(int rank) = 0;
  virtual void log(LogLevel level, const std::string& line) = 0;
};

}  // namespace tutti
