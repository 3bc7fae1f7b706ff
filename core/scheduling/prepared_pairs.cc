#include "tutti/core/scheduling/prepared_pairs.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/check.h"
#include "tutti/core/agreement/checks.h"

namespace tutti {

std::string pair_entry_key(std::string_view name, int64_t peer) {
  return fmt::format("{}\n{}", name, peer);
}

PreparedPair::PreparedPair(std::string key, int64_t id, const Signature& signature)
    : key_(std::move(key)),
      id_(id),
      peer_(signature.root),
      sends_(signature.kind == CollectiveKind::send),
      dtype_(signature.dtype),
      count_(signature.shape.count()) {}

bool PreparedPair::fits(const Signature& signature) const {
  return (signature.kind == CollectiveKind::send) == sends_ && signature.dtype == dtype_ &&
         signature.shape.count() == count_ && signature.placement == DeviceKind::cpu;
}

uint64_t PreparedPair::launch() {
  TUTTI_CHECK(state_ == State::ready);
  state_ = State::running;
  is_recalled_ = false;
  return next_use_++;
}

void PreparedPair::finish() {
  TUTTI_CHECK(state_ == State::running);
  state_ = State::ready;
  settle();
}

bool PreparedPair::leave() {
  if (over_from_ <= next_use_) return false;
  over_from_ = next_use_;
  settle();
  return true;
}

bool PreparedPair::on_left(uint64_t use) {
  over_from_ = std::min(over_from_, use);
  left_by_peer_ = use;
  settle();
  return state_ == State::running && use < next_use_;
}

bool PreparedPair::recall() {
  TUTTI_CHECK(state_ == State::running);
  return !std::exchange(is_recalled_, true);
}

PreparedPair& PreparedPairs::make(std::string key, int64_t id, const Signature& signature) {
  const auto [found, is_new] = pairs_.try_emplace(key, key, id, signature);
  need_of_message(is_new, "it makes a pair that exists already");
  auto& pair = found->second;
  if (const auto early = early_left_.find(id); early != early_left_.end()) {
    pair.on_left(early->second);
    early_left_.erase(early);
  }
  return pair;
}

PreparedPair* PreparedPairs::find(const std::string& key) {
  const auto found = pairs_.find(key);
  return found == pairs_.end() ? nullptr : &found->second;
}

PreparedPair* PreparedPairs::with_id(int64_t id) {
  const auto found =
      std::ranges::find_if(pairs_, [&](const auto& item) { return item.second.id() == id; });
  return found == pairs_.end() ? nullptr : &found->second;
}

void PreparedPairs::clear() {
  pairs_.clear();
  early_left_.clear();
}

void PreparedPairs::leave_early(int64_t id, uint64_t use) {
  need_of_message(early_left_.size() < PairLearner::kMostNames,
                  "it leaves too many pairs that do not exist");
  early_left_.emplace(id, use);
}

PreparedPair* PreparedPairs::on_left(int from, int64_t id, uint64_t use) {
  auto* pair = with_id(id);
  if (pair == nullptr) {
    // Either this rank has left the pair too, or it has not yet received the answer that makes the
    // pair.
    if (id > newest_) leave_early(id, use);
    return nullptr;
  }
  need_of_message(pair->peer() == from, "it leaves a pair of which it is not a member");
  return pair->on_left(use) ? pair : nullptr;
}

bool PreparedPairs::on_recall(int from, int64_t id, uint64_t use) {
  auto* pair = with_id(id);
  if (pair == nullptr) {
    // Either this rank has left the pair and announced that, or it has not yet received the answer
    // that makes the pair.
    if (id > newest_) leave_early(id, use);
    return id > newest_;
  }
  need_of_message(pair->peer() == from,
                  "it asks to give up a use of a pair of which it is not a member");
  return pair->next_use() <= use && pair->leave();
}

namespace {

template <class Pair, class Map>
std::vector<Pair*> sorted(Map& map) {
  std::vector<Pair*> pairs;
  for (auto& [key, pair] : map) pairs.push_back(&pair);
  std::ranges::sort(pairs, {}, &PreparedPair::id);
  return pairs;
}

}  // namespace

std::vector<PreparedPair*> PreparedPairs::in_order() { return sorted<PreparedPair>(pairs_); }

std::vector<const PreparedPair*> PreparedPairs::in_order() const {
  return sorted<const PreparedPair>(pairs_);
}

std::vector<PreparedPair*> PreparedPairs::that_bring(std::string_view name) {
  auto pairs = in_order();
  std::erase_if(pairs, [&](const PreparedPair* pair) {
    return pair->sends() || pair->key() != pair_entry_key(name, pair->peer());
  });
  return pairs;
}

}  // namespace tutti
