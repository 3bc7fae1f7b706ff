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
/// with the other ranks, starts operations on the backend and finishes those that are over. It has
/// no thread, no lock and no clock: one caller at a time passes in the events and the time. It
/// calls the Backend, which never waits, and the Outside.
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

  /// Called when all ranks have met.
  void start() { become(Phase::running); }
  /// Replaces start() if the ranks do not meet.
  void abandon();

  /// The events since the last step.
  struct Batch {
    std::vector<Entry*> operations;  // in the order in which they were submitted
    std::vector<Entry*> joins;
    bool closes = false;      // the program closes its communicator; set in every step from then on
    std::string error = {};   // the error that made it close; empty: none
    bool is_watched = false;  // the peers are watched even if nothing is pending
    bool is_told = false;     // Outside::tell_launcher() has succeeded or failed
    std::optional<KnownDeaths> deaths = {};  // the news since the last step
  };
  /// Handles the batch, what the backend has received, and the time. Returns true if something
  /// moved; another step may find more to do then. If it returns false and arm() agrees, the caller
  /// may sleep until the backend's descriptor is readable, a new batch is there, or wake_at(). The
  /// lists in `batch` are empty afterwards. The caller must pass exceptions to on_thrown().
  bool step(Batch& batch, Clock::time_point now);
  /// Returns the exception that is being handled as the error that ends the communicator.
  Error error_of_exception() const;
  /// Called after an exception in a call of the node. The communicator ends on all ranks because of
  /// `error`. Throws nothing.
  void on_thrown(const Error& error) noexcept;

  /// Prepares for sleep. Returns false if something arrived meanwhile, so the caller must step
  /// again.
  bool arm();
  /// Returns when the next step is due although nothing arrives.
  Clock::time_point wake_at() const;
  /// Does the same for a thread that waits for a Work, which must check in time whether the plan
  /// still fits.
  Clock::time_point wake_at_for_driver() const;

  Phase phase() const { return phase_; }
  /// Returns whether the backend is no longer used.
  bool is_dead() const { return phase_ == Phase::broken || phase_ == Phase::over; }
  /// Returns whether something waits for other ranks, which must be watched then.
  bool pending() const;
  /// Returns whether the next step makes progress although nothing arrives. A thread that stops
  /// stepping must then make another one step.
  bool can_go_on() {
    return posted_ || submitted_late_ || (operations_go_on() && scheduler_->can_go_on());
  }
  /// Returns the error that broke the communicator, or null.
  const Error* broken() const { return broken_ ? &*broken_ : nullptr; }
  /// Returns why the running blocking call can never complete, or null if it may.
  const Error* why_blocking_never_ends() const;
  /// Returns whether the cause of a blocking call's failure may still arrive. Either the end of a
  /// link is being looked into, or the backend failed without a reason before this rank has learned
  /// which rank is gone. The caller steps until this is false. `reason` is the failure of the
  /// operation, null if the backend gives none. `since` is when the call failed.
  bool may_hear_why(const Error* reason, Clock::time_point since, Clock::time_point now) const;
  /// Returns the error with which the blocking call fails after that.
  Error why_blocking_failed(const Error* reason) const;
  /// Returns when to ask may_hear_why() again if no step moves; max() while only steps can change
  /// it.
  Clock::time_point hears_no_more_at(Clock::time_point since) const {
    return phase_ == Phase::inquiring ? Clock::time_point::max() : since + kLongestSilence;
  }
  /// Returns why a blocking call cannot begin, or null if it may.
  const Error* why_none_begins() const { return refusal_ ? &*refusal_ : nullptr; }
  /// Returns whether this rank was healthy until it closed, so that it says goodbye to its peers.
  bool may_say_goodbye() const { return phase_ == Phase::over && !broken_ && !is_abandoned_; }
  /// Returns the timelines of all ranks. Only rank 0 has them, and only after the gathering
  /// has ended.
  const Gathering& gathering() const { return gathering_; }

  BlockingCalls& blocking() { return blocking_; }
  const BlockingCalls& blocking() const { return blocking_; }
  const Scheduler& scheduler() const { return *scheduler_; }
  const Peers& peers() const { return peers_; }
  uint64_t negotiation_messages() const { return negotiation_messages_; }
  /// Returns " while \"x\" was in flight", or an empty text if nothing is.
  std::string in_flight() const;

  /// The cause of a link's end is looked for no longer than this.
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
  std::optional<Error> broken_;   // error that ended it; set in broken and in over
  std::optional<Error> refusal_;  // why nothing begins any more; set in closing, broken and over
  Peers peers_;
  Inquiry inquiry_;
  Overseer overseer_;
  BlockingCalls blocking_;
  Gathering gathering_;
  Closing closing_;
  std::unique_ptr<Coordinator> coordinator_;  // on rank 0
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<Entry*> deferred_;  // wait until the Works that their streams wait for are done
  std::deque<std::vector<std::byte>> loopback_;
  std::vector<Entry*> taken_, joining_;  // of the batch, used in take()
  std::vector<std::byte> message_;       // buffer of handle_messages()
  bool posted_ = false;                  // this step posted a control message
  bool submitted_late_ = false;          // this step submitted operations after it had advanced
  bool is_watched_ = false;
  uint64_t negotiation_messages_ = 0;
};

}  // namespace tutti
