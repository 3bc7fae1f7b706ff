// The coordinator's answers as a rank reads them: responses of every form, and plans.

#include "tests/fuzz/peers/agreement.h"

namespace tutti::fuzz {
namespace {

bool parse_answers(std::string_view input) {
  const auto options = agreement_options();
  NameCache cache(options.cache_capacity);
  bool read = false;
  while (!input.empty()) {
    read_answers(take_part(input), cache, options);
    read = true;
  }
  return read;
}

std::string answer_text(const std::vector<Response>& responses) {
  auto message = begin_message(MessageType::answers);
  for (const auto& response : responses) {
    message.put(AnswerType::response);
    encode_response(message, response, NameCache(0));
  }
  return as_part(text_of(message.bytes()));
}

std::vector<std::string> seeds_of_answers() {
  std::vector<std::string> seeds;
  std::vector<Response> all;
  for (int number = 0; number < kCollectiveKindCount; ++number) {
    const auto kind = static_cast<CollectiveKind>(number);
    Response response;
    response.name = std::string("tensor ") + static_cast<char>('a' + number);
    response.signature = allreduce_signature(6);
    response.signature.kind = kind;
    if (kind == CollectiveKind::recv) continue;  // answered in the same way as a send
    if (kind == CollectiveKind::send) response.rows = {0, 2};
    if (kind == CollectiveKind::allgather || kind == CollectiveKind::gather)
      response.rows = {6, 6, 6};
    if (kind == CollectiveKind::scatter || kind == CollectiveKind::reduce_scatter)
      response.rows = {1, 2, 3};
    if (kind == CollectiveKind::alltoall) response.rows = {1, 4, 0, 4};
    all.push_back(response);
    seeds.push_back(answer_text({response}));
  }
  seeds.push_back(answer_text(all));
  // The second message refers to the first one's tensor by its number in the cache.
  NameCache cache(4);
  auto known = begin_message(MessageType::answers);
  known.put(AnswerType::response);
  cache.remember(all.front().name, all.front().signature);
  encode_response(known, all.front(), cache);
  seeds.push_back(answer_text({all.front()}) + as_part(text_of(known.bytes())));

  Response failed = all.front();
  failed.error = Error(ErrorCode::mismatch, "ranks differ").with_rank(1).with_tensor("a");
  Response joined = all.front();
  joined.joined = {0, 2};
  Response over;
  over.all_joined = true;
  over.rows = {2};
  seeds.push_back(answer_text({failed, joined, over}));

  auto plan = begin_message(MessageType::answers);
  plan.put(AnswerType::plan);
  auto member = allreduce_signature(1 << 20);
  member.group = "g";
  member.group_size = 1;
  Plan::build(1, {{"a", allreduce_signature(8), false}, {"b", member, true}}, 1 << 20, 1 << 20)
      .encode(plan);
  seeds.push_back(as_part(text_of(plan.bytes())));
  return seeds;
}

// A plan lists the pieces of its tensors, at most kMostPieces.
const Registered registered_answers({.name = "answers",
                                     .parse = parse_answers,
                                     .seeds = seeds_of_answers,
                                     .most_bytes = 32u << 20,
                                     .most_bytes_per_byte = 1024});

}  // namespace
}  // namespace tutti::fuzz
