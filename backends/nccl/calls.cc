#include "tutti/backends/nccl/calls.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "tutti/base/check.h"
#include "tutti/kernels/convert.h"
#include "tutti/tensor/dtype.h"

namespace tutti {

namespace {

// The element types that NCCL has, too.
constexpr std::pair<DataType, ncclDataType_t> kNumbers[] = {
    {DataType::f64, ncclFloat64},   {DataType::f32, ncclFloat32}, {DataType::f16, ncclFloat16},
    {DataType::bf16, ncclBfloat16}, {DataType::i8, ncclInt8},     {DataType::i32, ncclInt32},
    {DataType::i64, ncclInt64},     {DataType::u8, ncclUint8},    {DataType::u32, ncclUint32},
    {DataType::u64, ncclUint64}};

ncclDataType_t number_type(DataType dtype) {
  for (const auto& [ours, theirs] : kNumbers)
    if (ours == dtype) return theirs;
  TUTTI_CHECK(false);
  return ncclNumTypes;
}

// Averages are sums for NCCL, and the result is divided.
constexpr std::pair<ReduceOp, ncclRedOp_t> kOperators[] = {{ReduceOp::sum, ncclSum},
                                                           {ReduceOp::average, ncclSum},
                                                           {ReduceOp::min, ncclMin},
                                                           {ReduceOp::max, ncclMax},
                                                           {ReduceOp::product, ncclProd}};

ncclRedOp_t operation_of(ReduceOp op) {
  for (const auto& [ours, theirs] : kOperators)
    if (ours == op) return theirs;
  TUTTI_CHECK(false);
  return ncclNumOps;
}

bool is_good(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

bool all_equal(std::span<const int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(),
                     [&](int64_t count) { return count == counts[0]; });
}

// The calls of one collective. Kinds that do not reduce move bytes, because NCCL lacks some of our
// types.
class Calls {
 public:
  Calls(const NcclLibrary& library, ncclComm_t comm, const Collective& what, int rank,
        StreamRef stream, ncclRedOp_t op)
      : library_(library),
        comm_(comm),
        what_(what),
        rank_(rank),
        element_(static_cast<size_t>(size_of(what.dtype))),
        stream_(static_cast<cudaStream_t>(stream.native)),
        op_(op) {}

  ncclResult_t run() const {
    switch (what_.kind) {
      case CollectiveKind::allreduce:
        if (count() == 0) return ncclSuccess;
        return library_.ncclAllReduce(what_.input, what_.output, count(), number_type(what_.dtype),
                                      op_, comm_, stream_);
      case CollectiveKind::reduce:
        return reduce(what_.input, what_.output, count(), what_.root);
      case CollectiveKind::reduce_scatter:
        return reduce_scatter();
      case CollectiveKind::broadcast:
        return broadcast(rank_ == what_.root ? what_.input : what_.output, what_.output, bytes(0),
                         what_.root);
      case CollectiveKind::allgather:
        return allgather();
      case CollectiveKind::gather:
        return gather();
      case CollectiveKind::scatter:
        return scatter();
      case CollectiveKind::alltoall:
        return alltoall();
      case CollectiveKind::send:
        return send(what_.input, bytes(0), what_.root);
      case CollectiveKind::recv:
        return recv(what_.output, bytes(0), what_.root);
      case CollectiveKind::barrier:
        break;
    }
    TUTTI_CHECK(false);
    return ncclInternalError;
  }

 private:
  size_t count() const { return static_cast<size_t>(what_.send_counts[0]); }
  size_t bytes(size_t rank) const {
    return static_cast<size_t>(what_.send_counts[rank]) * element_;
  }
  size_t own() const { return static_cast<size_t>(rank_); }

  ncclResult_t reduce(const std::byte* input, std::byte* output, size_t n, int root) const {
    if (n == 0) return ncclSuccess;
    return library_.ncclReduce(input, output, n, number_type(what_.dtype), op_, root, comm_,
                               stream_);
  }
  ncclResult_t broadcast(const std::byte* input, std::byte* output, size_t n, int root) const {
    if (n == 0) return ncclSuccess;
    return library_.ncclBroadcast(input, output, n, ncclUint8, root, comm_, stream_);
  }
  ncclResult_t send(const std::byte* input, size_t n, int peer) const {
    if (n == 0) return ncclSuccess;
    return library_.ncclSend(input, n, ncclUint8, peer, comm_, stream_);
  }
  ncclResult_t recv(std::byte* output, size_t n, int peer) const {
    if (n == 0) return ncclSuccess;
    return library_.ncclRecv(output, n, ncclUint8, peer, comm_, stream_);
  }

  // Calls f(rank, byte offset, bytes) for the share of each rank. Stops at the first call that
  // fails.
  template <class Function>
  static ncclResult_t for_each_share(std::span<const int64_t> counts, size_t element,
                                     Function&& f) {
    size_t offset = 0;
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      const auto bytes = static_cast<size_t>(counts[rank]) * element;
      if (const auto result = f(static_cast<int>(rank), offset, bytes); !is_good(result))
        return result;
      offset += bytes;
    }
    return ncclSuccess;
  }
  template <class Function>
  ncclResult_t for_each_share(Function&& f) const {
    return for_each_share(what_.send_counts, element_, f);
  }

  ncclResult_t reduce_scatter() const {
    if (!needs_group(what_)) {
      if (count() == 0) return ncclSuccess;
      return library_.ncclReduceScatter(what_.input, what_.output, count(),
                                        number_type(what_.dtype), op_, comm_, stream_);
    }
    return for_each_share([&](int rank, size_t offset, size_t n) {
      return reduce(what_.input + offset, what_.output, n / element_, rank);
    });
  }
  ncclResult_t allgather() const {
    if (!needs_group(what_)) {
      if (count() == 0) return ncclSuccess;
      return library_.ncclAllGather(what_.input, what_.output, bytes(0), ncclUint8, comm_, stream_);
    }
    return for_each_share([&](int rank, size_t offset, size_t n) {
      const auto* input = rank == rank_ ? what_.input : what_.output + offset;
      return broadcast(input, what_.output + offset, n, rank);
    });
  }
  ncclResult_t gather() const {
    const auto result = send(what_.input, bytes(own()), what_.root);
    if (!is_good(result) || rank_ != what_.root) return result;
    return for_each_share(
        [&](int rank, size_t offset, size_t n) { return recv(what_.output + offset, n, rank); });
  }
  ncclResult_t scatter() const {
    const auto result = recv(what_.output, bytes(own()), what_.root);
    if (!is_good(result) || rank_ != what_.root) return result;
    return for_each_share(
        [&](int rank, size_t offset, size_t n) { return send(what_.input + offset, n, rank); });
  }
  ncclResult_t alltoall() const {
    const auto sent = for_each_share(
        [&](int rank, size_t offset, size_t n) { return send(what_.input + offset, n, rank); });
    if (!is_good(sent)) return sent;
    return for_each_share(what_.recv_counts, element_, [&](int rank, size_t offset, size_t n) {
      return recv(what_.output + offset, n, rank);
    });
  }

  const NcclLibrary& library_;
  const ncclComm_t comm_;
  const Collective& what_;
  const int rank_;
  const size_t element_;
  const cudaStream_t stream_;
  const ncclRedOp_t op_;
};

}  // namespace

std::vector<DeviceService> nccl_services(Device device, Determinism determinism) {
  std::vector<DataType> numbers, floats, all;
  for (int i = 0; i < kDataTypeCount; ++i) all.push_back(static_cast<DataType>(i));
  for (const auto& [dtype, theirs] : kNumbers) {
    numbers.push_back(dtype);
    if (is_float(dtype)) floats.push_back(dtype);
  }
  std::vector<DeviceService> services{{device, moving_kinds(), all, {}}};
  if (determinism == Determinism::rank_order) return services;
  // An average of integers needs a sum that is wider than the integers. NCCL does not offer that.
  const auto reducing = reducing_kinds();
  services.push_back({device,
                      reducing,
                      numbers,
                      {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}});
  services.push_back({device, reducing, floats, {ReduceOp::average}});
  return services;
}

bool needs_group(const Collective& collective) {
  const auto kind = collective.kind;
  if (!has_rows(kind)) return false;
  return has_root(kind) || exchanges_parts(kind) || !all_equal(collective.send_counts);
}

int NcclOperators::divisor(const Collective& collective, int size) {
  const bool is_scaled = collective.op == ReduceOp::average && sums_of(collective) == Sums::scaled;
  return is_scaled ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size))) : 1;
}

ncclResult_t NcclOperators::find(const NcclLibrary& library, ncclComm_t comm,
                                 const Collective& collective, int size, ncclRedOp_t& found) {
  found = ncclSum;
  if (!reduces(collective.kind)) return ncclSuccess;
  const int by = divisor(collective, size);
  if (by == 1) {
    found = operation_of(collective.op);
    return ncclSuccess;
  }
  if (!scaled_) {
    auto factor = to_float16(1.0f / static_cast<float>(by));
    const auto result = library.ncclRedOpCreatePreMulSum(
        &found, &factor, number_type(collective.dtype), ncclScalarHostImmediate, comm);
    if (!is_good(result)) return result;
    scaled_ = found;
  }
  found = *scaled_;
  return ncclSuccess;
}

ncclResult_t nccl_call(const NcclLibrary& library, ncclComm_t comm, const Collective& collective,
                       int rank, ncclRedOp_t op, StreamRef stream) {
  return Calls(library, comm, collective, rank, stream, op).run();
}

}  // namespace tutti
