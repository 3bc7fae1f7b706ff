#include "tests/fuzz/peers/agreement.h"

#include "tutti/core/agreement/bucket.h"
#include "tutti/core/agreement/checks.h"

namespace tutti::fuzz {
namespace {

// A rank refuses answers about more elements than it asked for (check_answer), so their pieces are
// bounded.
constexpr int64_t kOwnElements = 1 << 24;

}  // namespace

Options agreement_options() {
  Options options;
  options.replay_after = 2;
  options.cache_capacity = 4;
  return options;
}

void read_answers(std::string_view message, NameCache& cache, const Options& options) {
  WireReader reader(bytes_of(message));
  if (reader.enumeration<MessageType>(kMessageTypeCount) != MessageType::answers)
    throw DamagedMessage("not an answer");
  std::vector<Response> allreduces;
  while (!reader.at_end()) {
    if (reader.enumeration<AnswerType>(2) == AnswerType::plan) {
      Plan::decode(reader, options.fusion_bytes, options.partition_bytes);
      continue;
    }
    auto response = decode_response(reader, cache);
    check_response(response, kAgreeing);
    if (!response.error && !response.all_joined && response.joined.empty())
      cache.remember(response.name, response.signature);
    if (response.error || response.all_joined) continue;
    if (response.signature.shape.count() > kOwnElements) throw NotAskedFor();
    if (response.signature.kind == CollectiveKind::allreduce)
      allreduces.push_back(std::move(response));
  }
  std::vector<Placeable> places;
  for (const auto& response : allreduces)
    places.push_back({static_cast<int64_t>(places.size()), &response.signature, response.joined});
  plan_buckets(places, options.fusion_bytes, options.partition_bytes);
}

Signature allreduce_signature(int64_t elements) {
  Signature signature;
  signature.shape = Shape{elements};
  return signature;
}

}  // namespace tutti::fuzz
