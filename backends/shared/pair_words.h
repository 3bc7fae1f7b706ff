#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/backends/shared/sleep_line.h"
#include "tutti/base/sync.h"

namespace tutti {

/// The words by which each two ranks meet: one in each rank's memory about each other rank, which
/// only that rank writes, and once. A zeroed word says nothing yet.
///
///   a word:   silent --tell--> its rank has memory for the two, and where | it has none
///   the two:  awaited --both words have memory--> met
///             awaited --either word has none--> refused
template <class Sync>
class PairWordsOf {
 public:
  using Word = typename Sync::template Atomic<uint64_t>;
  enum class Meeting : uint8_t { met, awaited, refused };

  static constexpr size_t bytes(int size) { return static_cast<size_t>(size) * sizeof(Word); }

  /// `words`: of each rank, one about each rank; `sleepers`: of each rank.
  PairWordsOf(int rank, std::vector<Word*> words, std::vector<SleepLineOf<Sync>*> sleepers)
      : rank_(rank), words_(std::move(words)), sleepers_(std::move(sleepers)) {}

  bool has_told(int peer) const {
    return word(rank_, peer).load(std::memory_order_relaxed) != kSilent;
  }
  /// Says where this rank's memory for the two is, or that it has none. Calls ring() if the peer
  /// sleeps.
  template <class Ring>
  void tell(int peer, std::optional<uint64_t> place, const Ring& ring) {
    word(rank_, peer).store(place ? *place + 1 : kNone, std::memory_order_seq_cst);
    // Either the other rank sees the word before it sleeps, or this one sees that it sleeps.
    if (sleepers_[static_cast<size_t>(peer)]->take()) ring();
  }
  /// Says how the two stand, once this rank has told.
  Meeting meeting(int peer) const {
    const auto own = word(rank_, peer).load(std::memory_order_relaxed);
    const auto other = word(peer, rank_).load(std::memory_order_seq_cst);
    if (own == kNone || other == kNone) return Meeting::refused;
    return other == kSilent ? Meeting::awaited : Meeting::met;
  }
  /// Says where the memory of a peer that this rank has met is.
  uint64_t place_of(int peer) const {
    return word(peer, rank_).load(std::memory_order_relaxed) - 1;
  }
  /// Before sleeping: whether the peer has still told nothing.
  bool is_silent(int peer) const {
    return word(peer, rank_).load(std::memory_order_seq_cst) == kSilent;
  }

 private:
  static constexpr uint64_t kSilent = 0, kNone = ~uint64_t{0};  // else one more than the place
  Word& word(int rank, int about) const {
    return words_[static_cast<size_t>(rank)][static_cast<size_t>(about)];
  }

  const int rank_;
  const std::vector<Word*> words_;
  const std::vector<SleepLineOf<Sync>*> sleepers_;
};
using PairWords = PairWordsOf<Threads>;

}  // namespace tutti
