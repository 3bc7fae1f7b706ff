#include "tutti/backends/shared/cache_choice.h"

namespace tutti {

Destination CacheChoice::choose(size_t word, uint64_t chunk) {
  auto& told = told_.destinations[word];
  const auto said = told.load(std::memory_order_relaxed);
  // Until rank 0 has published a choice, the parts stay in the cache.
  auto next = said == Destination::memory ? said : Destination::cache;
  auto& cost = costs_[ChunkRing::slot_of(chunk)];
  cost = {};
  if (rank_ == 0) {
    next = choices_[word].next();
    cost.is_measured = choices_[word].is_measured();
    if (next != said) told.store(next, std::memory_order_relaxed);
  }
  ring_.own_line(chunk).payload[kDestinationAt] = static_cast<std::byte>(next);
  return next;
}

void CacheChoice::learn(size_t word, uint64_t chunk, size_t bytes) {
  const auto& cost = costs_[ChunkRing::slot_of(chunk)];
  if (!cost.is_measured) return;
  const auto first = of(0, chunk);
  for (size_t rank = 1; rank < ring_.size(); ++rank)
    if (of(rank, chunk) != first) return;
  choices_[word].measured(first, cost.spent_ns / static_cast<float>(bytes));
}

}  // namespace tutti
