#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/core/agreement/coordinator.h"
#include "tutti/core/node/blocking_calls.h"
#include "tutti/core/node/closing.h"
#include "tutti/core/node/gathering.h"
#include "tutti/core/node/inquiry.h"
#include "tutti/core/node/outside.h"
#include "tutti/core/node/overseer.h"
#include "tutti/core/node/phase.h"
#include "tutti/core/scheduling/peers.h"
#include "tutti/core/scheduling/scheduler.h"
#include "tutti/core/settings/options.h"
#include "tutti/core/settings/statistics.h"
#include "tutti/core/watch/timeline.h"

namespace tutti {

/// Decides what one rank of a communicator does. It takes submitted operations, exchanges messages
/// with the other ranks, starts operations on the backend and finishes operations that have ended.
/// It has no thread, no lock and no clock: one caller at a time passes in the events and the time.
/// It calls only the Backend, which never waits, and the Outside (the services of the engine).
class Node {
 public:
  struct Ports {
    Backend& backend;
    Outside& outside;
    Timeline& timeline;
    Statistics& counting;
  };
  /// `options` and `context` must outlive the node.
  Node(const Options& options, const Context& context, Ports ports);

  /// Called when all ranks are connected.
  void start() { become(Phase::running); }
  /// Called instead of start() if the ranks could not connect.
  void abandon();

  /// The events since the last step.
  struct Batch {
    std::vector<Entry*> operations;  // in the order in which they were submitted
    std::vector<Entry*> joins;
    bool closes = false;      // the program closes its communicator; set in every later step too
    std::string error = {};   // the error because of which the program closes; empty: none
    bool is_watched = false;  // the peers are watched although nothing is pending
    bool is_told = false;     // Outside::tell_launcher() has succeeded or failed
    std::optional<KnownDeaths> deaths = {};  // the deaths, if they were read since the last step
  };
  /// Handles the batch, the received messages, and the time. Returns true if there was progress;
  /// another step may then find more to do. If it returns false and arm() returns true, the caller
  /// may sleep. It must wake when the backend's descriptor is readable, when there is a new batch,
  /// and at wake_at(). The lists in `batch` are empty afterwards. The caller must pass exceptions
  /// to on_thrown().
  bool step(Batch& batch, Clock::time_point now);
  /// Converts the exception that is being handled to the error that ends the communicator.
  Error error_of_exception() const;
  /// Called after a call of the node has thrown. Ends the communicator on all ranks because of
  /// `error`. Throws nothing.
  void on_thrown(const Error& error) noexcept;

  /// Prepares for sleep. Returns false if something has arrived meanwhile. The caller must then
  /// step again instead of sleeping.
  bool arm();
  /// Returns the time at which the next step is due if nothing arrives.
  Clock::time_point wake_at() const;
  /// Returns wake_at() for a thread that waits for a Work. That thread must also check regularly
  /// whether the plan (the recorded step) still fits.
  Clock::time_point wake_at_for_driver() const;

  Phase phase() const { return phase_; }
  /// Returns whether the backend is not used any more.
  bool is_dead() const { return phase_ == Phase::broken || phase_ == Phase::over; }
  /// Returns whether something waits for other ranks, so that they must be watched.
  bool pending() const;
  /// Returns whether the next step makes progress although nothing arrives. A thread that does not
  /// call step() any more must then make another thread call it.
  bool can_go_on() {
    return posted_ || submitted_late_ || (operations_go_on() && scheduler_->can_go_on());
  }
  /// Returns the error that broke the communicator, or null.
  const Error* broken() const { return broken_ ? &*broken_ : nullptr; }
  /// Returns the error if the running blocking call can never complete, else null.
  const Error* why_blocking_never_ends() const;
  /// Returns whether the cause of a blocking call's failure may still become known. That is the
  /// case during an inquiry about a link's end. It is also the case if the backend failed without a
  /// reason and this rank does not know yet which rank is gone. The caller must step until this
  /// returns false. `reason` is the operation's error, or null if the backend gives none. `since`
  /// is when the call failed.
  bool may_hear_why(const Error* reason, Clock::time_point since, Clock::time_point now) const;
  /// Returns the error of the failed blocking call. Call it after may_hear_why() has returned
  /// false.
  Error why_blocking_failed(const Error* reason) const;
  /// Returns the time at which to call may_hear_why() again if no step makes progress. max(): only
  /// a step can change its result.
  Clock::time_point hears_no_more_at(Clock::time_point since) const {
    return phase_ == Phase::inquiring ? Clock::time_point::max() : since + kLongestSilence;
  }
  /// Returns the error if no blocking call can begin, else null.
  const Error* why_none_begins() const { return refusal_ ? &*refusal_ : nullptr; }
  /// Returns whether this rank was healthy until it closed, and therefore says goodbye to its
  /// peers.
  bool may_say_goodbye() const { return phase_ == Phase::over && !broken_ && !is_abandoned_; }
  /// Returns the timelines of all ranks. Only rank 0 has them, and only after all have arrived or
  /// the time limit has passed.
  const Gathering& gathering() const { return gathering_; }

  BlockingCalls& blocking() { return blocking_; }
  const BlockingCalls& blocking() const { return blocking_; }
  const Scheduler& scheduler() const { return *scheduler_; }
  const Peers& peers() const { return peers_; }
  uint64_t negotiation_messages() const { return negotiation_messages_; }
  /// Returns " while \"x\" was in flight", or an empty text if nothing is in flight.
  std::string in_flight() const;

  /// The longest time of an inquiry about a link's end.
  static constexpr Clock::duration kLongestInquiry = Inquiry::kLongest;

 private:
  static constexpr Clock::duration kLongestSilence = std::chrono::seconds(1);
  void become(Phase next);
  bool operations_go_on() const { return phase_ == Phase::running || phase_ == Phase::departing; }
  bool take(Batch& batch, Clock::time_point now);
  bool take_deferred(Clock::time_point now);
  const Error* why_never(const Entry& entry) const;
  RankStatus status() const;
  void watch(Clock::time_point now);
  // --- node_messages.cc ---
  void send(int rank, std::span<const std::byte> message);
  void send_to_all(const WireWriter& message);
  bool handle_messages(Clock::time_point now);
  void handle(int from, std::span<const std::byte> message, Clock::time_point now);
  void handle(MessageType type, int from, WireReader& reader, Clock::time_point now);
  void on_fault(Error error);
  // --- node_ends.cc ---
  Error closed_error() const;
  Error left_error(int rank, const std::string& why) const;
  void on_farewell(int from, Farewell farewell);
  void handle_peer_events(Clock::time_point now);
  void inquire(Clock::time_point now);
  Error blame_for(const Error& lost, Clock::time_point now);
  void fault(const Error& error, bool tell_others);
  void break_off(const Error& error);
  void finish_breaking(const Error& error);
  void fail_all(const Error& error);
  void begin_closing(const std::string& error, Clock::time_point now);
  void go_on_closing(bool is_told, Clock::time_point now);
  void send_timeline();

  const Options& options_;
  const Context& context_;
  Backend& backend_;
  Transport& transport_;
  Outside& outside_;
  Timeline& timeline_;

  Phase phase_ = Phase::forming;
  bool is_abandoned_ = false;
  std::optional<Error> broken_;   // the error that ended the communicator; set in broken and over
  std::optional<Error> refusal_;  // the error of new calls; set in closing, broken and over
  Peers peers_;
  Inquiry inquiry_;
  Overseer overseer_;
  BlockingCalls blocking_;
  Gathering gathering_;
  Closing closing_;
  std::unique_ptr<Coordinator> coordinator_;  // only on rank 0
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<Entry*> deferred_;  // must wait until earlier Works on their streams have ended
  std::deque<std::vector<std::byte>> loopback_;
  std::vector<Entry*> taken_, joining_;  // contents of the batch, used in take()
  std::vector<std::byte> message_;       // buffer used in handle_messages()
  bool posted_ = false;                  // this step posted a control message
  bool submitted_late_ = false;  // this step submitted operations after the scheduler had advanced
  bool is_watched_ = false;
  uint64_t negotiation_messages_ = 0;
};

}  // namespace tutti
