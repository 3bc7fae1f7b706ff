#include "tutti/backends/nccl/connect.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace tutti {

namespace {

constexpr std::string_view kFailed = "failed ";
constexpr const char* kIdKey = "nccl/id";

bool is_taken(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

// The optional settings. Each has the version of NCCL that introduced it. An older library reads
// only the part of the struct that it knows, so it would silently ignore a newer setting.
struct Setting {
  const char* name;
  std::optional<int> NcclSettings::*setting;
  int ncclConfig_t::*field;
  int since;
};
constexpr Setting kSettings[] = {
    {"cga_cluster_size", &NcclSettings::cga_cluster_size, &ncclConfig_t::cgaClusterSize, 0},
    {"min_ctas", &NcclSettings::min_ctas, &ncclConfig_t::minCTAs, 0},
    {"max_ctas", &NcclSettings::max_ctas, &ncclConfig_t::maxCTAs, 0},
    {"split_share", &NcclSettings::split_share, &ncclConfig_t::splitShare, 0},
    {"traffic_class", &NcclSettings::traffic_class, &ncclConfig_t::trafficClass,
     NCCL_VERSION(2, 25, 0)},
    {"collnet_enable", &NcclSettings::collnet_enable, &ncclConfig_t::collnetEnable,
     NCCL_VERSION(2, 27, 0)},
    {"cta_policy", &NcclSettings::cta_policy, &ncclConfig_t::CTAPolicy, NCCL_VERSION(2, 27, 0)},
    {"nvls_ctas", &NcclSettings::nvls_ctas, &ncclConfig_t::nvlsCTAs, NCCL_VERSION(2, 27, 0)},
    {"channels_per_net_peer", &NcclSettings::channels_per_net_peer,
     &ncclConfig_t::nChannelsPerNetPeer, NCCL_VERSION(2, 28, 0)},
    {"nvlink_centric_sched", &NcclSettings::nvlink_centric_sched, &ncclConfig_t::nvlinkCentricSched,
     NCCL_VERSION(2, 28, 0)},
};

std::string ready_key(int rank) { return fmt::format("nccl/ready/{}", rank); }

}  // namespace

ncclConfig_t make_config(const NcclSettings& settings, const NcclLibrary& library) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = "tutti";
  if (!settings.net_name.empty()) config.netName = settings.net_name.c_str();
  for (const auto& [name, setting, field, since] : kSettings) {
    const auto& value = settings.*setting;
    if (!value) continue;
    if (library.version < since)
      throw Error(ErrorCode::version,
                  fmt::format("TUTTI_NCCL_CONFIG: {} needs NCCL {}, but NCCL {} is here; leave it "
                              "out or install a newer one",
                              name, text_of_version(since), library.version_text()));
    config.*field = *value;
  }
  return config;
}

NcclConnector::NcclConnector(const Context& context, std::shared_ptr<const NcclLibrary> library,
                             NcclSettings settings)
    : context_(context),
      told_(*context.store, "nccl", context.rank, context.size),
      settings_(std::move(settings)),
      library_(std::move(library)) {}

void NcclConnector::announce(const std::string& failure) {
  context_.store->set(ready_key(context_.rank), failure.empty()
                                                    ? library_->version_text()
                                                    : fmt::format("{}{}", kFailed, failure));
  std::string first;
  for (int rank = 0; rank < context_.size; ++rank) {
    const auto text = context_.store->get(ready_key(rank), context_.deadline);
    if (text.starts_with(kFailed))
      throw Error(ErrorCode::unavailable,
                  fmt::format("rank {}: {}", rank, text.substr(kFailed.size())))
          .with_rank(rank);
    if (rank == 0) first = text;
    if (text != first)
      throw Error(
          ErrorCode::version,
          fmt::format("rank 0 has NCCL {}, rank {} has {}; all ranks must have the same version",
                      first, rank, text))
          .with_rank(rank);
  }
}

std::shared_ptr<NcclCommunicator> NcclConnector::connect() {
  auto config = make_config(settings_, *library_);
  ncclComm_t native = nullptr;
  const auto id = exchange_id();
  const auto result =
      library_->ncclCommInitRankConfig(&native, context_.size, id, context_.rank, &config);
  if (native == nullptr) fail(library_->describe(result));
  auto communicator = std::make_shared<NcclCommunicator>(library_, native);
  if (!is_taken(result)) fail(library_->describe(result, native));
  await(*communicator);
  return communicator;
}

std::shared_ptr<NcclCommunicator> NcclConnector::split(NcclCommunicator& whole, int color,
                                                       int key) {
  auto config = make_config(settings_, *library_);
  whole.begin_split(color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, config);
  await(whole);
  auto part = whole.take_split();
  if (part) await(*part);
  return part;
}

ncclUniqueId NcclConnector::exchange_id() {
  ncclUniqueId id;
  if (context_.rank == 0) {
    const auto result = library_->ncclGetUniqueId(&id);
    if (!is_taken(result)) fail(library_->describe(result));
    context_.store->set(kIdKey, std::string(id.internal, sizeof id.internal));
    return id;
  }
  const auto text = context_.store->get(kIdKey, context_.deadline);
  if (text.size() != sizeof id.internal)
    throw Error(ErrorCode::corrupt_data, "the store holds something that is not an id of NCCL");
  std::memcpy(id.internal, text.data(), sizeof id.internal);
  return id;
}

// Reports the error to the other ranks too, so that they do not wait for this rank.
void NcclConnector::fail(const Error& error) {
  told_.fail(error);
  throw Error(error);
}

void NcclConnector::fail(const std::string& said) {
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

void NcclConnector::await(NcclCommunicator& communicator) {
  using State = NcclCommunicator::State;
  auto next_look = Clock::now();
  while (true) {
    const auto state = communicator.state();
    if (state == State::failed) fail(communicator.failure());
    if (communicator.is_over())
      fail(Error(
          ErrorCode::unavailable,
          fmt::format("rank {}: its communicator broke while it was being split", context_.rank)));
    if (state == State::ready) return;
    if (Clock::now() >= next_look) {
      next_look = Clock::now() + std::chrono::milliseconds(100);
      told_.look();
    }
    if (context_.deadline.passed())
      fail(Error(ErrorCode::timeout,
                 fmt::format("rank {}: NCCL did not connect the ranks in time; is one of them "
                             "gone, or TUTTI_CONNECT_TIMEOUT too short?",
                             context_.rank)));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace tutti
