#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "tutti/backends/order/message_links.h"
#include "tutti/collectives/transport.h"

namespace tutti {

/// Brings operations into one order on all ranks, although the ranks start them in any order, and
/// settles each verdict before any data moves. It serves libraries whose calls block, cannot be
/// cancelled and must come in one order. Every rank announces to rank 0 that it is ready for an
/// operation. Rank 0 answers once all that take part are ready, in one order for all ranks. An
/// operation that was cancelled before its answer never runs on any rank; one that was answered
/// with `run` runs on every rank that takes part. Only the holder of the engine's token uses it.
class Sequencer {
 public:
  enum class Answer : uint32_t { run, veto, drop };
  struct Call {
    uint64_t tag = 0;
    uint32_t number = 0;  // position in the order of all calls; equal on all ranks that take part
    Answer answer = Answer::run;
  };

  explicit Sequencer(Transport& transport);

  /// Announces that this rank has started `tag`, with all ranks or, if `peer` >= 0, with that rank.
  void ready(uint64_t tag, uint32_t verdict, int peer);
  /// Asks for the answer `drop`. It has no effect on an operation that was answered before.
  void cancel(uint64_t tag);

  bool progress();
  /// Returns the next answer, in order.
  std::optional<Call> take();
  /// Returns whether no answer will come any more, because a rank is gone.
  bool is_hopeless(int peer) const;

 private:
  struct Message {
    enum class Kind : uint32_t { ready, cancel, answer };
    uint64_t tag = 0;
    Kind kind = Kind::ready;
    uint32_t value = 0;  // verdict or Answer
    uint32_t number = 0;
    int32_t peer = -1;
  };
  struct Waiting {
    int arrived = 0;
    uint32_t verdict = 0;
    int first = -1, second = -1;  // the two ranks that take part; -1: all
  };

  void send(int to, const Message& message);
  void on_message(int from, const Message& message);
  void on_ready(int from, const Message& message);
  void on_cancel(int from, uint64_t tag);
  void answer(int to, const Call& call);
  bool was_dropped(uint64_t tag) const;

  const int rank_;
  const int size_;
  MessageLinks<Message> links_;  // between rank 0 and each other rank
  std::deque<Call> calls_;
  // Used on rank 0 only.
  std::unordered_map<uint64_t, Waiting> waiting_;
  std::deque<uint64_t> dropped_;  // the latest ones; messages about them may still arrive
  uint32_t next_number_ = 0;
};

}  // namespace tutti
