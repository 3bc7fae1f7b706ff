#include "tutti/core/agreement/farewell.h"

#include <algorithm>

namespace tutti {

namespace {

bool contains(const std::vector<int64_t>& numbers, uint64_t number) {
  return std::find(numbers.begin(), numbers.end(), static_cast<int64_t>(number)) != numbers.end();
}

}  // namespace

bool Farewell::has_finished(uint64_t tag) const {
  return tag < next_tag && !contains(unfinished, tag);
}

// Ranks follow one plan after another. A plan begins when all ranks have finished the previous
// plan.
bool Farewell::has_finished_bucket(uint32_t of_plan, uint64_t sequence) const {
  if (of_plan != plan) return of_plan < plan;
  return sequence < next_sequence && !contains(unfinished_buckets, sequence);
}

std::optional<uint64_t> Farewell::uses_of(int64_t pair) const {
  for (size_t i = 0; i + 1 < pairs.size(); i += 2)
    if (pairs[i] == pair) return static_cast<uint64_t>(pairs[i + 1]);
  return {};
}

void encode(WireWriter& writer, const Farewell& farewell) {
  writer.put(farewell.next_tag).numbers(farewell.unfinished);
  writer.put(farewell.plan).put(farewell.next_sequence).numbers(farewell.unfinished_buckets);
  writer.numbers(farewell.pairs);
  writer.put(farewell.blocking_done).put(farewell.joins);
  writer.put(static_cast<int32_t>(farewell.cause)).text(farewell.error);
}

Farewell decode_farewell(WireReader& reader) {
  Farewell farewell;
  farewell.next_tag = reader.get<uint64_t>();
  farewell.unfinished = reader.numbers();
  farewell.plan = reader.get<uint32_t>();
  farewell.next_sequence = reader.get<uint64_t>();
  farewell.unfinished_buckets = reader.numbers();
  farewell.pairs = reader.numbers();
  farewell.blocking_done = reader.get<uint64_t>();
  farewell.joins = reader.get<uint64_t>();
  farewell.cause = reader.get<int32_t>();
  farewell.error = reader.text();
  return farewell;
}

}  // namespace tutti
