#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "tutti/backends/order/message_links.h"
#include "tutti/collectives/transport.h"

namespace tutti {

/// Brings operations into one order on all ranks, although the ranks start them in any order, and
/// settles each one's verdict before any of its data moves: for a library whose calls block, cannot
/// be cancelled and must come in one order. Every rank says when it is ready for an operation; rank
/// 0 answers, in one stream for all, once all that take part are. An operation that was cancelled
/// before that never runs anywhere; one that was called runs everywhere. The holder of the engine's
/// token only.
class Sequencer {
 public:
  enum class Answer : uint32_t { run, veto, drop };
  struct Call {
    uint64_t tag = 0;
    uint32_t number = 0;  // in the order of all calls, equal on all that take part
    Answer answer = Answer::run;
  };

  explicit Sequencer(Transport& transport);

  /// This rank has started `tag`, with all ranks or (`peer` >= 0) with that one.
  void ready(uint64_t tag, uint32_t verdict, int peer);
  /// Asks for the answer `drop`, unless the operation was called before.
  void cancel(uint64_t tag);

  bool progress();
  /// The answers, in order.
  std::optional<Call> take();
  /// True if no answer will come any more, because of a rank that is gone.
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
    int first = -1, second = -1;  // the two that take part; or all
  };

  void send(int to, const Message& message);
  void on_message(int from, const Message& message);
  void on_ready(int from, const Message& message);
  void on_cancel(int from, uint64_t tag);
  void answer(int to, const Call& call);
  bool was_dropped(uint64_t tag) const;

  const int rank_;
  const int size_;
  MessageLinks<Message> links_;  // of rank 0 with each other rank
  std::deque<Call> calls_;
  // On rank 0.
  std::unordered_map<uint64_t, Waiting> waiting_;
  std::deque<uint64_t> dropped_;  // the last ones: other ranks may still hear of them
  uint32_t next_number_ = 0;
};

}  // namespace tutti
