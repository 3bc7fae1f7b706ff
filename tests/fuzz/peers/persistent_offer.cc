// The offers by which ranks announce memory that their peers' kernels use.

#include "tutti/core/calls/persistent_offer.h"

#include "tests/fuzz/harness.h"

namespace tutti::fuzz {
namespace {

bool parse_offer(std::string_view input) {
  const auto offer = decode_offer(1, bytes_of(input));
  const auto same = decode_offer(1, encode_offer(offer));
  require(same.what == offer.what && same.failure == offer.failure && same.code == offer.code &&
              same.identity == offer.identity && same.device == offer.device &&
              same.board == offer.board && same.data == offer.data && same.handle == offer.handle,
          "an offer does not come back");
  return true;
}

std::vector<std::string> seeds_of_offers() {
  PersistentOffer offer;
  offer.what = "sum as f32, prescale 1, postscale 1: f32[3]";
  offer.identity = "0000:18:00.0";
  offer.board = offer.data = 0x7f0000000000;
  PersistentOffer failed;
  failed.failure = "there is no memory";
  failed.code = ErrorCode::out_of_memory;
  return {text_of(encode_offer(offer)), text_of(encode_offer(failed))};
}

const Registered registered_offers({.name = "persistent_offer",
                                    .parse = parse_offer,
                                    .seeds = seeds_of_offers});

}  // namespace
}  // namespace tutti::fuzz
