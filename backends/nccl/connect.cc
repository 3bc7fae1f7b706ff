#include "tutti/backends/nccl/connect.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace tutti {

namespace {

constexpr std::string_view kFailed = "failed ";
constexpr const char* kFailureKey = "nccl/failure";
constexpr const char* kIdKey = "nccl/id";

std::string ready_key(int rank) { return fmt::format("nccl/ready/{}", rank); }

}  // namespace

Device choose_device(const Context& context) {
  const auto kind = has_device_runtime(DeviceKind::fake) ? DeviceKind::fake : DeviceKind::cuda;
  int count = 0;
  try {
    count = device_runtime(kind).count();
  } catch (const Error& error) {
    throw Error(ErrorCode::unavailable,
                fmt::format("there is no GPU that NCCL could use ({})", error.what()));
  }
  if (count == 0)
    throw Error(ErrorCode::unavailable,
                "there is no GPU that NCCL could use (CUDA shows none); use another backend");
  const auto hosts = context.hosts();
  const auto own = static_cast<size_t>(context.rank);
  const auto local = std::count(hosts.begin(), hosts.begin() + context.rank, hosts[own]);
  return {kind, static_cast<int>(local) % count};
}

NcclConnector::NcclConnector(const Context& context, std::shared_ptr<const NcclLibrary> library,
                             const std::string& failure)
    : context_(context), library_(std::move(library)) {
  context_.store->set(ready_key(context_.rank), failure.empty()
                                                    ? library_->version_text()
                                                    : fmt::format("{}{}", kFailed, failure));
  hear_all();
}

void NcclConnector::hear_all() {
  std::string first;
  for (int rank = 0; rank < context_.size; ++rank) {
    const auto text = context_.store->get(ready_key(rank), context_.deadline);
    if (text.starts_with(kFailed))
      throw Error(ErrorCode::unavailable,
                  fmt::format("rank {}: {}", rank, text.substr(kFailed.size())))
          .with_rank(rank);
    if (rank == 0) first = text;
    if (text != first)
      throw Error(ErrorCode::version,
                  fmt::format("rank 0 has NCCL {}, rank {} has {}; all ranks must have one version",
                              first, rank, text))
          .with_rank(rank);
  }
}

std::vector<ncclComm_t> NcclConnector::connect(int count) {
  auto settings = config();
  std::vector<ncclComm_t> comms(1, nullptr);
  const auto id = exchange_id();
  check(library_->ncclCommInitRankConfig(&comms[0], context_.size, id, context_.rank, &settings),
        comms[0]);
  await(comms[0]);
  while (static_cast<int>(comms.size()) < count) {
    ncclComm_t comm = nullptr;
    check(library_->ncclCommSplit(comms[0], 0, context_.rank, &comm, &settings), comms[0]);
    await(comms[0]);
    await(comm);
    comms.push_back(comm);
  }
  return comms;
}

ncclConfig_t NcclConnector::config() const {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = "tutti";
  return config;
}

ncclUniqueId NcclConnector::exchange_id() {
  ncclUniqueId id;
  if (context_.rank == 0) {
    check(library_->ncclGetUniqueId(&id), nullptr);
    context_.store->set(kIdKey, std::string(id.internal, sizeof id.internal));
    return id;
  }
  const auto text = context_.store->get(kIdKey, context_.deadline);
  if (text.size() != sizeof id.internal)
    throw Error(ErrorCode::corrupt_data, "the store holds something that is no id of NCCL");
  std::memcpy(id.internal, text.data(), sizeof id.internal);
  return id;
}

// The others hear of it, too: nobody need wait for this rank.
void NcclConnector::fail(const Error& error) {
  throw Error(error.code(), context_.store->set_once(kFailureKey, error.what()));
}

void NcclConnector::check(ncclResult_t result, ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const auto said = library_->describe(result, comm);
  if (comm != nullptr) library_->ncclCommAbort(comm);
  if (said.find("Duplicate GPU") != said.npos)
    fail(Error(ErrorCode::invalid_argument,
               fmt::format("two ranks use one GPU, which NCCL {} refuses ({}); start one rank a "
                           "GPU, or, for tests, give each process its own NCCL_HOSTID (then they "
                           "talk over sockets), or from NCCL 2.30.3 on set "
                           "NCCL_MULTI_RANK_GPU_ENABLE=1",
                           library_->version_text(), said)));
  fail(Error(ErrorCode::unavailable,
             fmt::format("rank {}: NCCL cannot connect the ranks ({}); NCCL_DEBUG=INFO makes it "
                         "say more",
                         context_.rank, said))
           .with_rank(context_.rank));
}

void NcclConnector::await(ncclComm_t comm) {
  auto next_look = Clock::now();
  while (true) {
    ncclResult_t result = ncclSuccess;
    check(library_->ncclCommGetAsyncError(comm, &result), comm);
    if (result == ncclSuccess) return;
    check(result, comm);
    if (Clock::now() >= next_look) {
      next_look = Clock::now() + std::chrono::milliseconds(100);
      if (const auto failure = context_.store->try_get(kFailureKey)) {
        library_->ncclCommAbort(comm);
        throw Error(ErrorCode::unavailable, *failure);
      }
    }
    if (context_.deadline.passed()) {
      library_->ncclCommAbort(comm);
      fail(Error(ErrorCode::timeout,
                 fmt::format("rank {}: NCCL did not connect the ranks in time; is one of them "
                             "gone, or TUTTI_CONNECT_TIMEOUT too short?",
                             context_.rank)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace tutti
