#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/agreement/name_cache.h"
#include "tutti/core/agreement/request.h"

namespace tutti {

/// The control messages between ranks; the first byte of each. All else is in messages.cc.
enum class MessageType : uint8_t {
  requests = 0,     // any rank to the coordinator: what I have
  answers = 1,      // the coordinator to all: what runs, in order; plans
  resend = 2,       // the coordinator to a rank: I forgot these numbers, tell me in full
  plan_joined = 3,  // any rank to the coordinator: I follow plan n from here on
  plan_failed = 4,  // any rank to the coordinator: I gave plan n up for want of these tensors
  plan_left = 5,    // any rank to the coordinator: nothing of plan n is on its way here any more
  veto = 6,         // any rank to all: bucket s of plan n will be dropped
  ping = 7,
  pong = 8,            // where I am, for reports
  fault = 9,           // any rank to all: this error ended it
  timeline = 10,       // any rank to rank 0 when it closes: a part of its events
  leaving = 11,        // any rank to all: it closes, and how far it went (Farewell)
  pair_left = 12,      // a rank to its peer: from use u on I ask again for what was pair p
  pair_recalled = 13,  // a rank to its peer: leave pair p now unless you have launched use u
};
inline constexpr int kMessageTypeCount = 14;

/// Where a rank is, as it tells in a pong.
struct RankStatus {
  std::string last_submitted = {};
  uint32_t plan = 0;
  uint64_t next_sequence = 0;   // buckets of the plan that it has launched
  uint64_t next_tag = 0;        // negotiated operations before this one it has launched
  uint64_t outstanding = 0;     // operations it waits for
  uint64_t blocking_calls = 0;  // that it has made
  std::string blocking = {};    // the one in which it has waited for a while; empty: none
  bool joined = false;          // a thread of it waits until all ranks have joined
};

struct Veto {
  uint32_t plan = 0;
  uint64_t sequence = 0;
};

void encode_request(WireWriter& writer, const Request& request, const NameCache& cache);
/// Throws DamagedMessage. Returns false, and the number in `unknown`, if the sender used a
/// number that the cache has forgotten.
bool decode_request(WireReader& reader, const NameCache& cache, Request& request, int64_t& unknown);

void encode_response(WireWriter& writer, const Response& response, const NameCache& cache);
Response decode_response(WireReader& reader, const NameCache& cache);

void encode(WireWriter& writer, const RankStatus& status);
RankStatus decode_status(WireReader& reader);

inline WireWriter begin_message(MessageType type) { return std::move(WireWriter().put(type)); }

}  // namespace tutti
