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

/// Decides what one rank of a communicator does: takes what the program submitted, talks with the
/// other ranks, starts operations on the backend and says what is over. It has no thread, no lock
/// and no clock: one caller at a time brings it what happened and what time it is. It calls the
/// Backend, which never waits, and the Outside.
class Node {
 public:
  struct Ports {
    Backend& backend;
    Outside& outside;
    Timeline& timeline;
    Statistics& counting;
  };
  /// `options` and `context` outlive the node.
  Node(const Options& options, const Context& context, Ports ports);

  /// All ranks have met.
  void start() { become(Phase::running); }
  /// Instead of start(): the ranks do not meet after all.
  void abandon();

  /// Holds what has come since the last step.
  struct Batch {
    std::vector<Entry*> operations;  // in the order in which they were submitted
    std::vector<Entry*> joins;
    bool closes = false;      // the program closes its communicator; set in every step from then on
    std::string error = {};   // because of which it does; empty: of its own accord
    bool is_watched = false;  // the peers are watched though nothing is pending
    bool is_told = false;     // what Outside::tell_launcher() asked for is done
    std::optional<KnownDeaths> deaths = {};  // the news since the last step
  };
  /// Does what follows from the batch, from what the backend has received and from the time. True:
  /// something moved, so that another step may find more to do. False: the caller may sleep, if
  /// arm() agrees, until the backend's descriptor is readable, a new batch is there, or wake_at().
  /// The lists in `batch` are empty afterwards. What is thrown goes to on_thrown().
  bool step(Batch& batch, Clock::time_point now);
  /// The exception that is being handled, as the error that ends the communicator.
  Error error_of_exception() const;
  /// Something was thrown in a call of the node: the communicator ends on all ranks because of
  /// `error`. Throws nothing.
  void on_thrown(const Error& error) noexcept;

  /// False: something came in meanwhile, so that the next step must not wait.
  bool arm();
  /// When the next step is due though nothing comes.
  Clock::time_point wake_at() const;
  /// The same for a thread that waits for a Work: it looks in time whether the plan still fits.
  Clock::time_point wake_at_for_driver() const;

  Phase phase() const { return phase_; }
  /// Whether the backend is used no more.
  bool is_dead() const { return phase_ == Phase::broken || phase_ == Phase::over; }
  /// Whether something waits for other ranks, so that these are watched.
  bool pending() const;
  /// Whether the next step goes on although nothing comes. A thread that stops stepping sees to it
  /// that another one steps.
  bool can_go_on() {
    return posted_ || submitted_late_ || (operations_go_on() && scheduler_->can_go_on());
  }
  /// The error that broke the communicator; null: none did.
  const Error* broken() const { return broken_ ? &*broken_ : nullptr; }
  /// Why the blocking call under way can never end; null: it may end.
  const Error* why_blocking_never_ends() const;
  /// Whether the cause of the blocking call's failure may still come: a link's end is looked into,
  /// or the backend failed without a word before this rank has read who is gone. Step until it is
  /// not. `reason`: the failure of its operation; null: the backend gives none. `since`: it failed.
  bool may_hear_why(const Error* reason, Clock::time_point since, Clock::time_point now) const;
  /// The error with which the blocking call then ends.
  Error why_blocking_failed(const Error* reason) const;
  /// When to ask may_hear_why() again if no step has moved; max() while only steps can tell.
  Clock::time_point hears_no_more_at(Clock::time_point since) const {
    return phase_ == Phase::inquiring ? Clock::time_point::max() : since + kLongestSilence;
  }
  /// Why a blocking call cannot begin; null: it may.
  const Error* why_none_begins() const { return refusal_ ? &*refusal_ : nullptr; }
  /// Whether this rank was healthy until it closed, so that its peers are told goodbye.
  bool may_say_goodbye() const { return phase_ == Phase::over && !broken_ && !is_abandoned_; }
  /// On rank 0, once it is over: the timelines of all ranks.
  const Gathering& gathering() const { return gathering_; }

  BlockingCalls& blocking() { return blocking_; }
  const BlockingCalls& blocking() const { return blocking_; }
  const Scheduler& scheduler() const { return *scheduler_; }
  const Peers& peers() const { return peers_; }
  uint64_t negotiation_messages() const { return negotiation_messages_; }
  /// " while \"x\" was in flight"; empty: nothing is.
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
  std::optional<Error> broken_;   // what ended it, in broken and in over
  std::optional<Error> refusal_;  // in closing, broken and over: why nothing begins any more
  Peers peers_;
  Inquiry inquiry_;
  Overseer overseer_;
  BlockingCalls blocking_;
  Gathering gathering_;
  Closing closing_;
  std::unique_ptr<Coordinator> coordinator_;  // on rank 0
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<Entry*> deferred_;  // until what their streams wait for is done
  std::deque<std::vector<std::byte>> loopback_;
  std::vector<Entry*> taken_, joining_;  // of the batch, in take()
  std::vector<std::byte> message_;       // in handle_messages()
  bool posted_ = false;                  // this step posted a control message
  bool submitted_late_ = false;          // this step submitted operations after it had advanced
  bool is_watched_ = false;
  uint64_t negotiation_messages_ = 0;
};

}  // namespace tutti
