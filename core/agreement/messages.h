#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/agreement/name_cache.h"
#include "tutti/core/agreement/request.h"

namespace tutti {

/// The control messages between ranks. This is the first byte of each. messages.cc defines the
/// bodies of requests, answers and pongs.
enum class MessageType : uint8_t {
  requests = 0,     // any rank to the coordinator: its new operations
  answers = 1,      // the coordinator to all: operations to run, in order, and plans
  resend = 2,       // the coordinator to a rank: send these forgotten numbers in full
  plan_joined = 3,  // any rank to the coordinator: it follows plan n from here on
  plan_failed = 4,  // any rank to the coordinator: plan n given up, and the missing tensors
  plan_left = 5,    // any rank to the coordinator: it has finished everything of plan n
  veto = 6,         // any rank to all: bucket s of plan n will be dropped
  ping = 7,
  pong = 8,            // the answer to a ping: a RankStatus, for reports
  fault = 9,           // any rank to all: this error ended its communicator
  timeline = 10,       // any rank to rank 0 when it closes: a part of its events
  leaving = 11,        // any rank to all: it closes; how far it went (Farewell)
  pair_left = 12,      // a rank to its peer: it asks again for pair p, from use u on
  pair_recalled = 13,  // a rank to its peer: leave pair p now, unless use u is launched
};
inline constexpr int kMessageTypeCount = 14;

/// The state of a rank, as it sends it in a pong.
struct RankStatus {
  std::string last_submitted = {};
  uint32_t plan = 0;
  uint64_t next_sequence = 0;   // buckets of the plan that it has launched
  uint64_t next_tag = 0;        // it has launched all negotiated operations before this one
  uint64_t outstanding = 0;     // operations that it waits for
  uint64_t blocking_calls = 0;  // number of blocking calls that it has made
  std::string blocking = {};    // the call in which it has been waiting for a while; empty: none
  bool joined = false;          // a thread of the rank waits until all ranks have joined
};

struct Veto {
  uint32_t plan = 0;
  uint64_t sequence = 0;
};

void encode_request(WireWriter& writer, const Request& request, const NameCache& cache);
/// Throws DamagedMessage. If the sender used a number that the cache has forgotten, it returns
/// false and stores the number in `unknown`.
bool decode_request(WireReader& reader, const NameCache& cache, Request& request, int64_t& unknown);

void encode_response(WireWriter& writer, const Response& response, const NameCache& cache);
Response decode_response(WireReader& reader, const NameCache& cache);

void encode(WireWriter& writer, const RankStatus& status);
RankStatus decode_status(WireReader& reader);

inline WireWriter begin_message(MessageType type) { return std::move(WireWriter().put(type)); }

}  // namespace tutti
