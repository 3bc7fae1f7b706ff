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
/// The holder of the token calls it, from inside a call of the Node; nothing here waits, and
/// nothing here calls the Node.
class Outside {
 public:
  virtual ~Outside() = default;
  /// These operations are over, with an error or without. Counts them, frees their entries for the
  /// next use, and then ends their Works.
  virtual void finish(std::span<Entry* const> entries, const Error* error) = 0;
  /// Every operation that was submitted and is not over ends with this error.
  virtual void finish_all(const Error& error) = 0;
  /// Streams may now wait for Works that are not done yet.
  virtual void on_its_way() = 0;
  /// The communicator breaks because of this error: the door is `breaking`, and `broken` once
  /// nothing touches the program's memory any more.
  virtual void set_door(Door door, const Error& error) = 0;
  /// The first rank that left is known.
  virtual void on_first_departure(int rank) = 0;
  /// Looks in the job's store for deaths until stop_asking(), for Node::kLongestInquiry at most.
  /// The deaths that are found come in Node::Batch::deaths.
  virtual void ask_for_deaths() = 0;
  virtual void stop_asking() = 0;
  /// Tells the launcher that this rank closes because of an error of its own. True: the answer
  /// comes in Node::Batch::is_told; false: there is nobody to tell.
  virtual bool tell_launcher() = 0;
  /// As the system shows the process of a rank on this host.
  virtual ProcessState process_of(int rank) = 0;
  virtual void log(LogLevel level, const std::string& line) = 0;
};

}  // namespace tutti
