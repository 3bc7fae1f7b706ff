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

/// The words through which two ranks learn where each other's memory for their pair is. Each rank
/// has, in its own memory, one word per other rank. Only the owner writes it, and only once. A word
/// of 0 means that nothing is published yet.
///
///   a word:    silent --tell--> offset of its rank's memory for the pair | no memory
///   the pair:  awaited --both words have memory--> met
///              awaited --either word has none--> refused
template <class Sync>
class PairWordsOf {
 public:
  using Word = typename Sync::template Atomic<uint64_t>;
  enum class Meeting : uint8_t { met, awaited, refused };

  static constexpr size_t bytes(int size) { return static_cast<size_t>(size) * sizeof(Word); }

  /// `words` has, per rank, that rank's array of words. `sleepers` has one line per rank.
  PairWordsOf(int rank, std::vector<Word*> words, std::vector<SleepLineOf<Sync>*> sleepers)
      : rank_(rank), words_(std::move(words)), sleepers_(std::move(sleepers)) {}

  bool has_told(int peer) const {
    return word(rank_, peer).load(std::memory_order_relaxed) != kSilent;
  }
  /// Publishes the offset of this rank's memory for the pair with `peer`; no value means that this
  /// rank has none. Calls ring() if the peer sleeps.
  template <class Ring>
  void tell(int peer, std::optional<uint64_t> place, const Ring& ring) {
    word(rank_, peer).store(place ? *place + 1 : kNone, std::memory_order_seq_cst);
    // Either the peer sees the word before it sleeps, or this rank sees that the peer sleeps.
    if (sleepers_[static_cast<size_t>(peer)]->take()) ring();
  }
  /// Returns the state of the pair. This rank must have published its word.
  Meeting meeting(int peer) const {
    const auto own = word(rank_, peer).load(std::memory_order_relaxed);
    const auto other = word(peer, rank_).load(std::memory_order_seq_cst);
    if (own == kNone || other == kNone) return Meeting::refused;
    return other == kSilent ? Meeting::awaited : Meeting::met;
  }
  /// Returns the offset of the peer's memory. The state of the pair must be `met`.
  uint64_t place_of(int peer) const {
    return word(peer, rank_).load(std::memory_order_relaxed) - 1;
  }
  /// Returns whether the peer has published nothing yet. Called before this rank sleeps.
  bool is_silent(int peer) const {
    return word(peer, rank_).load(std::memory_order_seq_cst) == kSilent;
  }

 private:
  // Any other value of a word is an offset plus one.
  static constexpr uint64_t kSilent = 0, kNone = ~uint64_t{0};
  Word& word(int rank, int about) const {
    return words_[static_cast<size_t>(rank)][static_cast<size_t>(about)];
  }

  const int rank_;
  const std::vector<Word*> words_;
  const std::vector<SleepLineOf<Sync>*> sleepers_;
};
using PairWords = PairWordsOf<Threads>;

}  // namespace tutti
