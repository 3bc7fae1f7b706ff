// The calls of the C interface. They check the fields of a tutti_call_t and translate its values.
// Then one switch starts the calls that are matched by name, and another runs the blocking calls.

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string_view>

#include "tutti/adapters/c/sized.h"
#include "tutti/adapters/c/status.h"
#include "tutti/adapters/c/tutti.h"
#include "tutti/adapters/c/values.h"
#include "tutti/collectives/collective.h"

namespace tutti::c {

namespace {

constexpr bool is_number_of(int number, CollectiveKind kind) {
  return number == static_cast<int>(kind);
}
static_assert(is_number_of(TUTTI_ALLREDUCE, CollectiveKind::allreduce) &&
              is_number_of(TUTTI_ALLGATHER, CollectiveKind::allgather) &&
              is_number_of(TUTTI_BROADCAST, CollectiveKind::broadcast) &&
              is_number_of(TUTTI_REDUCE, CollectiveKind::reduce) &&
              is_number_of(TUTTI_GATHER, CollectiveKind::gather) &&
              is_number_of(TUTTI_SCATTER, CollectiveKind::scatter) &&
              is_number_of(TUTTI_REDUCE_SCATTER, CollectiveKind::reduce_scatter) &&
              is_number_of(TUTTI_ALLTOALL, CollectiveKind::alltoall) &&
              is_number_of(TUTTI_SEND, CollectiveKind::send) &&
              is_number_of(TUTTI_RECV, CollectiveKind::recv) &&
              is_number_of(TUTTI_BARRIER, CollectiveKind::barrier));
// The numbers below TUTTI_JOIN are for kinds of collectives.
static_assert(kCollectiveKindCount <= TUTTI_JOIN && TUTTI_JOIN < TUTTI_SPARSE_ALLREDUCE);
constexpr int kCallKindCount = kCollectiveKindCount + TUTTI_SPARSE_ALLREDUCE - TUTTI_JOIN + 1;

// Returns the position of a kind of call among all kinds, or -1 if there is no such kind.
constexpr int index_of_kind(int kind) {
  if (kind >= 0 && kind < kCollectiveKindCount) return kind;
  return kind >= TUTTI_JOIN && kind <= TUTTI_SPARSE_ALLREDUCE
             ? kCollectiveKindCount + kind - TUTTI_JOIN
             : -1;
}

constexpr bool is_collective(int kind) { return kind < kCollectiveKindCount; }

constexpr std::string_view name_of_kind(int kind) {
  if (is_collective(kind)) return to_string(static_cast<CollectiveKind>(kind));
  return kind == TUTTI_JOIN ? "join" : "sparse_allreduce";
}

/// The ways to make a call.
enum Form { kStarted, kGrouped, kBlocking };
constexpr std::array<std::string_view, 3> kFormWords = {"", "grouped ", "blocking "};

// Each field that a call may have is a bit.
enum Field : unsigned {
  kRoot = 1 << 0,
  kName = 1 << 1,
  kHandle = 1 << 2,
  kOrder = 1 << 3,
  kInput = 1 << 4,
  kOutput = 1 << 5,
  kValues = 1 << 6,
  kOptions = 1 << 7,
  kRows = 1 << 8,
  kFlags = 1 << 9,
  kAbsent = 1 << 10  // there are no calls of the kind in that form
};
constexpr std::array<std::string_view, 10> kFieldNames = {
    "root", "name", "handle", "order", "input", "output", "values", "options", "rows", "flags"};
constexpr unsigned kNumbers = kRoot | kOrder | kFlags;  // the others are pointers

// Returns the fields that have a meaning in a call of this kind, or kAbsent.
constexpr unsigned meaningful_fields(Form form, int number) {
  if (!is_collective(number)) {
    if (form != kStarted) return kAbsent;
    return number == TUTTI_JOIN ? 0U : kName | kInput | kValues | kOptions;
  }
  const auto kind = static_cast<CollectiveKind>(number);
  if (form == kGrouped && !traits(kind).may_fuse) return kAbsent;
  unsigned fields = 0;
  if (kind != CollectiveKind::barrier || form == kStarted) fields |= kName;
  if (form == kStarted) fields |= kHandle;
  if (has_root(kind) || is_pair(kind)) fields |= kRoot;
  if (traits(kind).input != Content::nothing) fields |= kInput;
  if (traits(kind).output != Content::nothing) fields |= kOutput;
  if (reduces(kind)) fields |= kOptions;
  const bool needs_rows_of_peers = form == kBlocking ? joins_parts(kind) : exchanges_parts(kind);
  if (form != kGrouped && (deals_parts(kind) || needs_rows_of_peers)) fields |= kRows;
  return fields;
}

constexpr auto kMeaningful = [] {
  std::array<std::array<unsigned, kCallKindCount>, kFormWords.size()> fields{};
  for (const Form form : {kStarted, kGrouped, kBlocking})
    for (int kind = 0; kind <= TUTTI_SPARSE_ALLREDUCE; ++kind)
      if (index_of_kind(kind) >= 0)
        fields[form][static_cast<size_t>(index_of_kind(kind))] = meaningful_fields(form, kind);
  return fields;
}();

std::string_view name_of(const tutti_call_t& call) {
  if (call.name != nullptr) return call.name;
  return call.handle != nullptr ? std::string_view(call.handle->name) : std::string_view();
}

/// Returns the error of a call that is refused. The text names the kind and the tensor.
Error refused_call(Form form, const tutti_call_t& call, std::string_view why) {
  const auto name = name_of(call);
  const auto quoted = name.empty() ? std::string() : fmt::format(" \"{}\"", name);
  return refused(fmt::format("{}{}{}: {}", kFormWords[form], name_of_kind(call.kind), quoted, why))
      .with_tensor(name);
}

unsigned bit_if(bool is_given, Field field) { return static_cast<unsigned>(is_given) * field; }

unsigned given_fields(const tutti_call_t& call) {
  return bit_if(call.root != 0, kRoot) | bit_if(call.name != nullptr, kName) |
         bit_if(call.handle != nullptr, kHandle) | bit_if(call.order != 0, kOrder) |
         bit_if(call.input != nullptr, kInput) | bit_if(call.output != nullptr, kOutput) |
         bit_if(call.values != nullptr, kValues) | bit_if(call.options != nullptr, kOptions) |
         bit_if(call.rows != nullptr, kRows) | bit_if(call.flags != 0, kFlags);
}

// Throws the error of a call that check() does not accept.
[[noreturn]] void refuse(Form form, const tutti_call_t& call, unsigned given, unsigned meaningful) {
  if (meaningful == kAbsent)
    throw refused_call(form, call, "there is no such call; start it by tutti_start()");
  for (size_t i = 0; i < kFieldNames.size(); ++i)
    if (const unsigned field = 1U << i; (given & ~meaningful & field) != 0)
      throw refused_call(form, call,
                         fmt::format("{} has no meaning here (expected {})", kFieldNames[i],
                                     (kNumbers & field) != 0 ? "0" : "NULL"));
  if ((given & kHandle) != 0)
    throw refused_call(form, call, "it has a name and a handle; give one of the two");
  throw refused_call(form, call, "name must not be NULL");
}

// Throws if there are no calls of this kind and form, or if a field is set that has no meaning for
// them. Otherwise the call has one key, its name or its handle, unless its kind needs none.
void check(Form form, const tutti_call_t& call) {
  const int index = index_of_kind(call.kind);
  if (index < 0)
    throw refused(fmt::format("{} is not a kind of call (expected 0 to {}, {} or {})", call.kind,
                              kCollectiveKindCount - 1, static_cast<int>(TUTTI_JOIN),
                              static_cast<int>(TUTTI_SPARSE_ALLREDUCE)));
  const unsigned meaningful = kMeaningful[form][static_cast<size_t>(index)];
  const unsigned given = given_fields(call), key = given & (kName | kHandle);
  const bool has_key = key == kName || key == kHandle, needs_key = (meaningful & kName) != 0;
  if ((given & ~meaningful) != 0 || has_key != needs_key || meaningful == kAbsent)
    refuse(form, call, given, meaningful);
}

const tutti_call_t& read_call(const tutti_call_t* given, tutti_call_t& room) {
  need(given, "call");
  return known_part(given, room, tutti_call_t TUTTI_CALL(0), "the call", "TUTTI_CALL");
}

// Returns the op of a call whose other options have no meaning.
ReduceOp op_alone(Form form, const tutti_call_t& call) {
  if (call.options == nullptr) return ReduceOp::average;
  tutti_reduce_options_t room;
  const auto& options = read_options(call.options, room);
  const char* field = options.prescale != 1    ? "prescale"
                      : options.postscale != 1 ? "postscale"
                      : options.wire != -1     ? "wire"
                      : options.priority != 0  ? "priority"
                                               : nullptr;
  if (field != nullptr)
    throw refused_call(form, call,
                       fmt::format("{} of the options has no meaning here; leave it as "
                                   "TUTTI_REDUCE_OPTIONS sets it",
                                   field));
  return op_from(options.op);
}

bool is_in_place(const tutti_call_t& call) {
  return call.output == nullptr || call.output == call.input;
}

TensorView input_of(const tutti_call_t& call) { return view_of(call.input, "input"); }
TensorView output_of(const tutti_call_t& call) { return view_of(call.output, "output"); }

// Returns whether the library allocates the result of a call whose kind moves rows. Throws if the
// call has no work to own the result.
bool is_allocated(Form form, const tutti_call_t& call, bool has_work) {
  if (call.output != nullptr) return false;
  if (call.handle != nullptr)
    throw refused_call(form, call, "output must not be NULL: a call by handle allocates no result");
  if (!has_work) throw refused_call(form, call, "work must not be NULL: the result is its output");
  return true;
}

// Starts a call that check() accepted.
Work begin(Communicator& comm, const tutti_call_t& call, bool has_work) {
  const OperationName name = call.handle != nullptr
                                 ? OperationName(call.handle->handle)
                                 : OperationName(call.name != nullptr ? call.name : "");
  const int root = call.root;
  const auto allocates = [&] { return is_allocated(kStarted, call, has_work); };
  const auto rows = [&] { return one_per_rank(comm, call.rows); };
  switch (call.kind) {
    case TUTTI_ALLREDUCE:
      if (is_in_place(call))
        return comm.allreduce(name, input_of(call), options_from(call.options));
      return comm.allreduce(name, input_of(call), output_of(call), options_from(call.options));
    case TUTTI_ALLGATHER:
      if (allocates()) return comm.allgather(name, input_of(call));
      return comm.allgather(name, input_of(call), output_of(call));
    case TUTTI_BROADCAST:
      if (call.input == nullptr && call.output != nullptr)
        return comm.broadcast(name, output_of(call), root);
      if (is_in_place(call)) return comm.broadcast(name, input_of(call), root);
      return comm.broadcast(name, input_of(call), output_of(call), root);
    case TUTTI_REDUCE: {
      const auto input = input_of(call);
      return comm.reduce(name, input, is_in_place(call) ? input : output_of(call), root,
                         op_alone(kStarted, call));
    }
    case TUTTI_GATHER:
      if (call.output == nullptr && comm.rank() != root && (call.handle != nullptr || !has_work))
        return comm.gather(name, input_of(call), TensorView(), root);
      if (allocates()) return comm.gather(name, input_of(call), root);
      return comm.gather(name, input_of(call), output_of(call), root);
    case TUTTI_SCATTER: {
      const auto input = view_or_none(call.input, "input");
      if (allocates()) return comm.scatter(name, input, root, rows());
      return comm.scatter(name, input, output_of(call), root, rows());
    }
    case TUTTI_REDUCE_SCATTER: {
      const auto options = options_from(call.options);
      if (allocates()) return comm.reduce_scatter(name, input_of(call), options, rows());
      return comm.reduce_scatter(name, input_of(call), output_of(call), options, rows());
    }
    case TUTTI_ALLTOALL:
      if (allocates()) return comm.alltoall(name, input_of(call), rows());
      return comm.alltoall(name, input_of(call), output_of(call), rows());
    case TUTTI_SEND:
      return comm.send(name, input_of(call), root);
    case TUTTI_RECV:
      if (root == TUTTI_ANY_RANK) return comm.recv_any(name, output_of(call));
      return comm.recv(name, output_of(call), root);
    case TUTTI_BARRIER:
      return comm.barrier(name);
    case TUTTI_JOIN:
      return comm.join();
    default:
      allocates();
      return comm.sparse_allreduce(call.name, {input_of(call), view_of(call.values, "values")},
                                   op_alone(kStarted, call));
  }
}

// Runs a blocking call that check() accepted.
void run(Communicator& comm, const tutti_call_t& call) {
  const std::string_view name = call.name != nullptr ? call.name : "";
  const int root = call.root;
  const auto rows = [&] { return one_per_rank(comm, call.rows); };
  switch (call.kind) {
    case TUTTI_ALLREDUCE: {
      const auto op = op_alone(kBlocking, call);
      if (is_in_place(call)) return comm.allreduce_blocking(name, input_of(call), op);
      return comm.allreduce_blocking(name, input_of(call), output_of(call), op);
    }
    case TUTTI_ALLGATHER:
      return comm.allgather_blocking(name, input_of(call), output_of(call), rows());
    case TUTTI_BROADCAST:
      if (call.input == nullptr && call.output != nullptr)
        return comm.broadcast_blocking(name, output_of(call), root);
      if (!is_in_place(call))
        throw refused_call(kBlocking, call, "it is in place; give one of input and output");
      return comm.broadcast_blocking(name, input_of(call), root);
    case TUTTI_REDUCE: {
      const auto op = op_alone(kBlocking, call);
      const auto input = input_of(call);
      return comm.reduce_blocking(name, input, is_in_place(call) ? input : output_of(call), root,
                                  op);
    }
    case TUTTI_GATHER:
      return comm.gather_blocking(name, input_of(call), view_or_none(call.output, "output"), root,
                                  rows());
    case TUTTI_SCATTER:
      return comm.scatter_blocking(name, view_or_none(call.input, "input"), output_of(call), root,
                                   rows());
    case TUTTI_REDUCE_SCATTER:
      return comm.reduce_scatter_blocking(name, input_of(call), output_of(call),
                                          op_alone(kBlocking, call), rows());
    case TUTTI_ALLTOALL:
      return comm.alltoall_blocking(name, input_of(call), output_of(call));
    case TUTTI_SEND:
      return comm.send_blocking(name, input_of(call), root);
    case TUTTI_RECV:
      return comm.recv_blocking(name, output_of(call), root);
    default:
      return comm.barrier_blocking();
  }
}

// --- groups --------------------------------------------------------------------------------------

/// The calls of a group, which have one kind.
struct Members {
  std::vector<tutti_call_t> calls;
  ReduceOptions options;
  bool has_outputs = false;
};

bool are_equal(const ReduceOptions& one, const ReduceOptions& other) {
  return one.op == other.op && one.prescale == other.prescale && one.postscale == other.postscale &&
         one.wire == other.wire && one.priority == other.priority;
}

// Throws unless the call has the kind, the options and the kind of output of the group's first one.
void check_member(const char* group, const Members& members, size_t index,
                  const ReduceOptions& options) {
  const auto& first = members.calls.front();
  const auto& call = members.calls[index];
  const auto refused_member = [&](std::string_view difference) {
    return refused(fmt::format("group \"{}\": call {} (\"{}\") {} call 0 (\"{}\"); give all "
                               "calls of a group the same",
                               group, index, name_of(call), difference, name_of(first)))
        .with_tensor(name_of(call));
  };
  if (call.kind != first.kind) throw refused_member("has another kind than");
  if (!are_equal(options, members.options)) throw refused_member("has other options than");
  const bool has_output = call.output != nullptr, first_has = first.output != nullptr;
  if (call.kind != TUTTI_ALLREDUCE && has_output != first_has)
    throw refused_member(has_output ? "has an output, unlike" : "has no output, unlike");
}

Members read_members(const char* group, const tutti_call_t* calls, size_t count) {
  if (count > 0) need(calls, "calls");
  Members members;
  members.calls.reserve(count);
  // The calls are struct_size bytes apart, which the header of the program determines.
  const auto* at = reinterpret_cast<const std::byte*>(calls);
  for (size_t i = 0; i < count; ++i, at += calls->struct_size) {
    const auto* given = reinterpret_cast<const tutti_call_t*>(at);
    if (given->struct_size != calls->struct_size)
      throw refused(
          fmt::format("call {} has struct_size {}, call 0 has {}; give all from TUTTI_CALL", i,
                      given->struct_size, calls->struct_size));
    const auto& call = members.calls.emplace_back(
        read_sized(given, tutti_call_t TUTTI_CALL(0), "the call", "TUTTI_CALL"));
    check(kGrouped, call);
    const auto options = options_from(call.options);
    if (i == 0) members.options = options;
    check_member(group, members, i, options);
    members.has_outputs = members.has_outputs || call.output != nullptr;
  }
  return members;
}

Work begin_group(Communicator& comm, const char* group, const Members& members, bool has_work) {
  const auto kind = members.calls.empty() ? TUTTI_ALLREDUCE : members.calls.front().kind;
  if (!members.has_outputs) {
    std::vector<NamedTensor> tensors;
    for (const auto& call : members.calls) tensors.push_back({call.name, input_of(call)});
    if (kind == TUTTI_ALLREDUCE) return comm.grouped_allreduce(group, tensors, members.options);
    is_allocated(kGrouped, members.calls.front(), has_work);
    if (kind == TUTTI_ALLGATHER) return comm.grouped_allgather(group, tensors);
    return comm.grouped_reduce_scatter(group, tensors, members.options);
  }
  std::vector<NamedTransfer> transfers;
  for (const auto& call : members.calls)
    transfers.push_back(
        {call.name, input_of(call), is_in_place(call) ? input_of(call) : output_of(call)});
  if (kind == TUTTI_ALLREDUCE) return comm.grouped_allreduce(group, transfers, members.options);
  if (kind == TUTTI_ALLGATHER) return comm.grouped_allgather(group, transfers);
  return comm.grouped_reduce_scatter(group, transfers, members.options);
}

// Starts an operation by `start` and puts its handle into *work. If `work` is NULL, this waits for
// the operation instead.
template <class Start>
void hand_out(tutti_work_t* work, Start&& start) {
  if (work == nullptr) return start().wait();
  auto handle = std::make_unique<tutti_work>();
  handle->work = start();
  *work = handle.release();
}

}  // namespace

}  // namespace tutti::c

using namespace tutti;     // NOLINT: the functions below are the C side of that namespace
using namespace tutti::c;  // NOLINT

int tutti_start(tutti_comm_t comm, const tutti_call_t* call, tutti_work_t* work) {
  if (work != nullptr) *work = nullptr;
  return guarded([&] {
    auto& communicator = communicator_of(comm);
    tutti_call_t room;
    const auto& known = read_call(call, room);
    check(kStarted, known);
    hand_out(work, [&] { return begin(communicator, known, work != nullptr); });
  });
}

int tutti_start_group(tutti_comm_t comm, const char* group, const tutti_call_t* calls, size_t count,
                      tutti_work_t* work) {
  if (work != nullptr) *work = nullptr;
  return guarded([&] {
    auto& communicator = communicator_of(comm);
    need(group, "group");
    const auto members = read_members(group, calls, count);
    hand_out(work, [&] { return begin_group(communicator, group, members, work != nullptr); });
  });
}

int tutti_run(tutti_comm_t comm, const tutti_call_t* call) {
  return guarded([&] {
    auto& communicator = communicator_of(comm);
    tutti_call_t room;
    const auto& known = read_call(call, room);
    check(kBlocking, known);
    run(communicator, known);
  });
}

int tutti_sendrecv(tutti_comm_t comm, const tutti_call_t* send, const tutti_call_t* recv) {
  return guarded([&] {
    auto& communicator = communicator_of(comm);
    tutti_call_t room[2];
    const auto& sent = read_call(send, room[0]);
    const auto& received = read_call(recv, room[1]);
    check(kBlocking, sent);
    check(kBlocking, received);
    if (sent.kind != TUTTI_SEND || received.kind != TUTTI_RECV)
      throw refused(fmt::format("tutti_sendrecv() takes a send and a recv, not {} and {}",
                                name_of_kind(sent.kind), name_of_kind(received.kind)));
    communicator.sendrecv_blocking(sent.name, input_of(sent), sent.root, received.name,
                                   output_of(received), received.root);
  });
}
