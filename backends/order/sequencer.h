#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "tutti/backends/order/message_links.h"
#include "tutti/collectives/transport.h"

namespace tutti {

/// Gives operations one order on all ranks, although the ranks start them in any order. It also
/// collects the verdicts (go or veto) before any data moves. It serves libraries whose calls block,
/// cannot be cancelled and must come in the same order on all ranks.
///
/// Every rank announces to rank 0 that it is ready for an operation. Once all ranks that take part
/// are ready, rank 0 answers, in one order for all ranks. If a rank cancels an operation before its
/// answer, the operation runs on no rank. With the answer `run` it runs on every rank that takes
/// part. Only the thread that drives the engine uses this class.
class Sequencer {
 public:
  enum class Answer : uint32_t { run, veto, drop };
  struct Call {
    uint64_t tag = 0;
    uint32_t number = 0;  // position in the order of all answers; equal on all ranks that take part
    Answer answer = Answer::run;
  };

  explicit Sequencer(Transport& transport);

  /// Announces that this rank has started the operation `tag`. It is an operation with the rank
  /// `peer` or, if `peer` is -1, of all ranks.
  void ready(uint64_t tag, uint32_t verdict, int peer);
  /// Asks for the answer `drop`. If rank 0 has already answered, this has no effect.
  void cancel(uint64_t tag);

  bool progress();
  /// Returns the next answer in order, or nothing.
  std::optional<Call> take();
  /// Returns whether an operation can get no answer any more, because a rank is gone. `peer` is the
  /// same as for ready().
  bool is_hopeless(int peer) const;

 private:
  struct Message {
    enum class Kind : uint32_t { ready, cancel, answer };
    uint64_t tag = 0;
    Kind kind = Kind::ready;
    uint32_t value = 0;  // a verdict, or an Answer
    uint32_t number = 0;
    int32_t peer = -1;
  };
  struct Waiting {
    int arrived = 0;
    uint32_t verdict = 0;
    int first = -1, second = -1;  // the two ranks that take part; -1: all ranks
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
  std::deque<uint64_t> dropped_;  // the latest dropped tags; messages about them may still arrive
  uint32_t next_number_ = 0;
};

}  // namespace tutti
