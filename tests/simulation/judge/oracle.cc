#include "tests/simulation/judge/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "tests/simulation/contents.h"
#include "tutti/base/error.h"

namespace tutti::simulation {

namespace {

int64_t combine(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::product:
      return a * b;
    case ReduceOp::band:
      return a & b;
    case ReduceOp::bor:
      return a | b;
    case ReduceOp::bxor:
      return a ^ b;
    default:
      return a + b;
  }
}

bool moves_between_two(CollectiveKind kind) {
  return kind == CollectiveKind::send || kind == CollectiveKind::recv;
}

std::string shape_of(const Operation& operation, bool without_rows) {
  const std::string rows = without_rows ? "_" : std::to_string(operation.rows);
  return operation.width == 0 ? rows : fmt::format("{}x{}", rows, operation.width);
}

// Returns the parameters that all ranks must give alike. In a scatter only the root gives the shape
// and rows.
std::string must_agree(const Voice& voice) {
  const Operation& said = *voice.operation;
  std::string text = fmt::format("{} in group \"{}\" of {}", to_string(said.kind), voice.group,
                                 voice.group.empty() ? 0 : voice.group_size);
  if (said.kind == CollectiveKind::barrier) return text;
  if (said.kind != CollectiveKind::scatter)
    text += fmt::format(" {}[{}]", to_string(said.dtype),
                        shape_of(said, said.kind == CollectiveKind::allgather ||
                                           said.kind == CollectiveKind::gather ||
                                           said.kind == CollectiveKind::alltoall));
  if (reduces(said.kind)) text += fmt::format(" op {}", static_cast<int>(said.op));
  if (said.kind == CollectiveKind::broadcast || said.kind == CollectiveKind::reduce ||
      said.kind == CollectiveKind::gather || said.kind == CollectiveKind::scatter)
    text += fmt::format(" root {}", said.root);
  if (said.kind == CollectiveKind::reduce_scatter)
    for (const int64_t rows : said.splits) text += fmt::format(" {}", rows);
  return text;
}

}  // namespace

int64_t rows_of(const Operation& operation, int rank, int size) {
  if (!operation.splits.empty()) return operation.splits.at(static_cast<size_t>(rank));
  return operation.rows / size + (rank < operation.rows % size ? 1 : 0);
}

const Action& Oracle::action_of(const OperationRecord& operation) const {
  const Site& site = operation.site;
  return case_.ranks.at(static_cast<size_t>(site.rank))
      .at(static_cast<size_t>(site.script))
      .at(static_cast<size_t>(site.action));
}

bool Oracle::is_join(const OperationRecord& operation) const {
  return action_of(operation).kind == Action::Kind::join;
}

const Operation* Oracle::operation_of(const OperationRecord& operation) const {
  if (is_join(operation)) return nullptr;
  return &action_of(operation).operations.at(static_cast<size_t>(operation.site.operation));
}

const Meeting* Oracle::meeting_of(const OperationRecord& operation) const {
  const auto found = place_.find(&operation);
  return found == place_.end() ? nullptr : &meetings_[found->second];
}

namespace {

// Returns the sender that an error text names, or -1. A mismatching receive from any rank reports
// its sender only there.
int sender_in(const std::string& text) {
  const auto end = text.find(" sends ");
  const auto begin = text.rfind("rank ", end);
  return end == std::string::npos || begin == std::string::npos ? -1
                                                                : std::stoi(text.substr(begin + 5));
}

}  // namespace

bool met_a_joined_rank(const OperationRecord& said) {
  return said.error_code == static_cast<int>(ErrorCode::mismatch) &&
         said.error_text.find("has joined (is out of data)") != std::string::npos;
}

Oracle::Oracle(const Case& from, const Record& record) : case_(from) {
  // Submissions with the same key belong to one operation: the count of joins before it, whether it
  // is matched by name, the name, the two ranks of a pair, and the count of earlier uses.
  using Key = std::tuple<int, bool, std::string, int, int, int>;
  std::map<Key, size_t> places;
  std::vector<std::map<Key, int>> uses(from.ranks.size());
  std::vector<int> joins(from.ranks.size()), failed_joins(from.ranks.size());
  std::set<std::pair<int, int>> joined, stays_joined;  // the rank and its count of joins
  std::map<size_t, int> since;
  int missed = 0;
  for (const auto& said : record.operations) {
    if (said.is_refused) continue;
    const int rank = said.site.rank;
    const auto place = static_cast<size_t>(rank);
    const int epoch = joins[place];
    if (is_join(said)) {
      joined.emplace(rank, epoch);
      if (said.ended == kNever || said.error_code == 0)
        stays_joined.emplace(rank, epoch - failed_joins[place]);
      if (said.ended != kNever) ++joins[place];
      if (said.ended != kNever && said.error_code != 0) ++failed_joins[place];
      continue;
    }
    const Action& action = action_of(said);
    const Operation& operation = *operation_of(said);
    const bool by_name = action.kind != Action::Kind::block || !from.world.serves_blocking;
    const bool is_pair = moves_between_two(operation.kind);
    int sender = -1, receiver = -1;
    if (is_pair) {
      const bool sends = operation.kind == CollectiveKind::send;
      int peer = operation.root == kAnyRank ? said.source : operation.root;
      if (peer < 0 && said.error_code == static_cast<int>(ErrorCode::mismatch))
        peer = sender_in(said.error_text);
      if (peer < 0) continue;
      sender = sends ? rank : peer;
      receiver = sends ? peer : rank;
    }
    // A send or receive needs only two ranks, so it goes on after a failed join.
    Key key{is_pair ? epoch - failed_joins[place] : epoch,
            by_name,
            by_name ? operation.name : "",
            sender,
            receiver,
            0};
    if (is_pair && met_a_joined_rank(said))
      std::get<5>(key) = -++missed;
    else
      std::get<5>(key) = uses[place][key]++;
    const auto [at, is_new] = places.emplace(key, meetings_.size());
    if (is_new) {
      meetings_.push_back({is_pair, sender, receiver, {}, {}, {}});
      since[at->second] = std::get<0>(key);
    }
    meetings_[at->second].voices[rank] = {&said, &operation,
                                          action.kind == Action::Kind::submit ? action.text : "",
                                          action.operations.size()};
    place_[&said] = at->second;
  }
  for (size_t i = 0; i < meetings_.size(); ++i) {
    Meeting& meeting = meetings_[i];
    const bool was_refused = std::ranges::any_of(
        meeting.voices, [](const auto& voice) { return met_a_joined_rank(*voice.second.record); });
    const auto& out_of_data = meeting.is_pair && !was_refused ? stays_joined : joined;
    for (int rank = 0; rank < from.world.size; ++rank) {
      if (meeting.is_pair && rank != meeting.from && rank != meeting.to) continue;
      if (meeting.voices.count(rank) > 0) continue;
      (out_of_data.count({rank, since[i]}) > 0 ? meeting.joined : meeting.absent).push_back(rank);
    }
  }
}

std::string Oracle::own_disagreement(const Meeting& meeting) const {
  const auto& first = meeting.voices.begin()->second;
  if (meeting.is_pair) {
    if (!meeting.joined.empty()) return "a rank that has joined neither sends nor receives";
    if (!meeting.is_complete()) return "";
    const auto& second = meeting.voices.rbegin()->second;
    const Operation &a = *first.operation, &b = *second.operation;
    const bool same_name = first.operation->name == second.operation->name;
    return a.dtype == b.dtype && a.count() == b.count() && a.kind != b.kind && same_name
               ? ""
               : "the two name other kinds, types or numbers of elements";
  }
  if (!meeting.is_complete()) return "";
  if (!meeting.joined.empty() && first.operation->kind != CollectiveKind::allreduce)
    return "only an allreduce goes on without a rank that has joined";
  const std::string said = must_agree(first);
  for (const auto& [rank, voice] : meeting.voices) {
    const bool same_name = voice.operation->name == first.operation->name;
    if (must_agree(voice) != said || !same_name)
      return fmt::format("{} against {}", said, must_agree(voice));
  }
  return "";
}

std::string Oracle::disagreement(const Meeting& meeting) const {
  const auto& first = meeting.voices.begin()->second;
  if (first.group.empty()) return own_disagreement(meeting);
  // All members of a group succeed, or none. They are adjacent in the record of this rank.
  std::string found;
  for (size_t i = 0; i < first.group_size; ++i) {
    const auto* member = first.record - first.record->site.operation + i;
    if (const Meeting* other = meeting_of(*member); found.empty() && other != nullptr) {
      if (!other->is_complete()) return own_disagreement(meeting);
      found = own_disagreement(*other);
    }
  }
  return found;
}

std::vector<std::byte> Oracle::result(const Meeting& meeting, int rank) const {
  const int size = case_.world.size;
  const Operation& mine = *meeting.voices.at(rank).operation;
  std::vector<std::byte> bytes;
  const auto give = [&](int from, int64_t begin, int64_t count) {
    const Operation& theirs = *meeting.voices.at(from).operation;
    for (int64_t i = begin; i < begin + count; ++i)
      append(bytes, mine.dtype, value_of(theirs, from, i));
  };
  const auto reduce = [&](int64_t begin, int64_t count) {
    for (int64_t i = begin; i < begin + count; ++i) {
      std::optional<int64_t> value;
      for (const auto& [from, voice] : meeting.voices) {
        const int64_t theirs = value_of(*voice.operation, from, i);
        value = value ? combine(mine.op, *value, theirs) : theirs;
      }
      if (mine.op == ReduceOp::average) *value /= static_cast<int64_t>(meeting.voices.size());
      append(bytes, mine.dtype, *value);
    }
  };
  // Returns the elements of `operation` that belong to the ranks below `to`.
  const auto before = [&](const Operation& operation, int to) {
    int64_t rows = 0;
    for (int other = 0; other < to; ++other) rows += rows_of(operation, other, size);
    return rows * operation.row();
  };
  switch (mine.kind) {
    case CollectiveKind::allreduce:
      reduce(0, mine.count());
      break;
    case CollectiveKind::reduce:
      if (rank == mine.root) reduce(0, mine.count());
      break;
    case CollectiveKind::reduce_scatter:
      reduce(before(mine, rank), rows_of(mine, rank, size) * mine.row());
      break;
    case CollectiveKind::gather:
      if (rank != mine.root) break;
      [[fallthrough]];
    case CollectiveKind::allgather:
      for (const auto& [from, voice] : meeting.voices) give(from, 0, voice.operation->count());
      break;
    case CollectiveKind::broadcast:
      give(mine.root, 0, mine.count());
      break;
    case CollectiveKind::scatter: {
      const Operation& dealt = *meeting.voices.at(mine.root).operation;
      for (int64_t i = 0; i < rows_of(dealt, rank, size) * dealt.row(); ++i)
        append(bytes, dealt.dtype, value_of(dealt, mine.root, before(dealt, rank) + i));
      break;
    }
    case CollectiveKind::alltoall:
      for (const auto& [from, voice] : meeting.voices)
        give(from, before(*voice.operation, rank),
             rows_of(*voice.operation, rank, size) * voice.operation->row());
      break;
    case CollectiveKind::recv:
      give(meeting.from, 0, mine.count());
      break;
    case CollectiveKind::send:
    case CollectiveKind::barrier:
      break;
  }
  return bytes;
}

}  // namespace tutti::simulation
