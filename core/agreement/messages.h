#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/agreement/name_cache.h"
#include "tutti/core/agreement/request.h"

namespace tutti {

/// The type of a control message between ranks. It is the first byte of the message. messages.cc
/// defines the bodies of requests, answers and pongs.
enum class MessageType : uint8_t {
  requests = 0,     // any rank to the coordinator: its new operations
  answers = 1,      // the coordinator to all: operations to run, in order, and plans
  resend = 2,       // the coordinator to a rank: send the requests with these forgotten ids in full
  plan_joined = 3,  // any rank to the coordinator: it has begun to follow plan n
  plan_failed = 4,  // any rank to the coordinator: plan n does not fit; lists the missing tensors
  plan_left = 5,    // any rank to the coordinator: it has finished all operations of plan n
  veto = 6,         // any rank to all: bucket s of plan n will be dropped
  ping = 7,
  pong = 8,            // the answer to a ping: a RankStatus, for reports
  fault = 9,           // any rank to all: this error ended its communicator
  timeline = 10,       // any rank to rank 0 when it closes: a part of its events
  leaving = 11,        // any rank to all: it closes; with its Farewell
  pair_left = 12,      // a rank to its peer: from use u of pair p on, it asks rank 0 again
  pair_recalled = 13,  // a rank to its peer: leave pair p now, unless it has launched use u
};
inline constexpr int kMessageTypeCount = 14;

/// The state of a rank, which it sends in a pong.
struct RankStatus {
  std::string last_submitted = {};
  uint32_t plan = 0;
  uint64_t next_sequence = 0;   // the rank has launched the buckets of the plan before this one
  uint64_t next_tag = 0;        // the rank has launched the negotiated operations before this one
  uint64_t outstanding = 0;     // number of operations for which it waits
  uint64_t blocking_calls = 0;  // number of blocking calls that it has made
  std::string blocking = {};    // the blocking call in which it has waited for long; empty: none
  bool joined = false;          // a thread of the rank waits until all ranks have joined
};

struct Veto {
  uint32_t plan = 0;
  uint64_t sequence = 0;
};

void encode_request(WireWriter& writer, const Request& request, const NameCache& cache);
/// Decodes a request. Returns false if the sender used an id that the cache has forgotten; that id
/// is stored in `unknown`. Throws DamagedMessage.
bool decode_request(WireReader& reader, const NameCache& cache, Request& request, int64_t& unknown);

void encode_response(WireWriter& writer, const Response& response, const NameCache& cache);
Response decode_response(WireReader& reader, const NameCache& cache);

void encode(WireWriter& writer, const RankStatus& status);
RankStatus decode_status(WireReader& reader);

inline WireWriter begin_message(MessageType type) { return std::move(WireWriter().put(type)); }

}  // namespace tutti
