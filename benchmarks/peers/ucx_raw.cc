// Compares backend ucx with direct calls of UCX, with the same transports and error handling in the
// same processes. Broadcast and send/recv are compared with a tagged message, and allreduce with
// puts of the same number of bytes in both directions into memory of UCX.
#include <ucp/api/ucp.h>

#include <cstring>

#include "benchmarks/common/pairs.h"
#include "benchmarks/common/program.h"
#include "benchmarks/common/sizes.h"
#include "tutti/core/arena.h"

namespace tutti::benchmarks {

namespace {

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK)
    throw std::runtime_error(std::string("UCX cannot ") + what + ": " + ucs_status_string(status));
}

/// UCX between two processes, as a program would use it directly.
class RawUcx {
 public:
  RawUcx(ForkTeam& team, bool handles_errors, bool has_shared_memory, int64_t most_bytes) {
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "read its configuration");
    if (handles_errors && has_shared_memory)
      check(ucp_config_modify(config, "MM_ERROR_HANDLING", "y"), "handle errors");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA;
    const auto status = ucp_init(&params, config, &context_);
    ucp_config_release(config);
    check(status, "start");
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucp_worker_create(context_, &worker, &worker_), "create a worker");

    ucp_address_t* address = nullptr;
    size_t length = 0;
    check(ucp_worker_get_address(worker_, &address, &length), "get its address");
    const auto theirs = exchange(team, std::string(reinterpret_cast<const char*>(address), length));
    ucp_worker_release_address(worker_, address);
    ucp_ep_params_t endpoint{};
    endpoint.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    endpoint.address = reinterpret_cast<const ucp_address_t*>(theirs.data());
    endpoint.err_mode = handles_errors ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
    check(ucp_ep_create(worker_, &endpoint, &endpoint_), "make an endpoint");

    ucp_mem_map_params_t map{};
    map.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    map.length = static_cast<size_t>(most_bytes);
    map.flags = UCP_MEM_MAP_ALLOCATE;
    check(ucp_mem_map(context_, &map, &memory_), "allocate memory");
    ucp_mem_attr_t attributes{};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    check(ucp_mem_query(memory_, &attributes), "tell where memory is");
    std::memset(attributes.address, 0, static_cast<size_t>(most_bytes));
    const auto place = exchange(
        team, std::string(reinterpret_cast<const char*>(&attributes.address), sizeof(void*)));
    std::memcpy(&target_, place.data(), sizeof target_);
    void* key = nullptr;
    check(ucp_rkey_pack(context_, memory_, &key, &length), "pack a key");
    const auto their_key = exchange(team, std::string(static_cast<const char*>(key), length));
    ucp_rkey_buffer_release(key);
    check(ucp_ep_rkey_unpack(endpoint_, their_key.data(), &key_), "unpack a key");
  }
  ~RawUcx() {
    ucp_rkey_destroy(key_);
    ucp_request_param_t plain{};
    wait(ucp_ep_close_nbx(endpoint_, &plain));
    ucp_mem_unmap(context_, memory_);
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }
  RawUcx(const RawUcx&) = delete;
  RawUcx& operator=(const RawUcx&) = delete;

  void send(const float* data, size_t bytes) {
    ucp_request_param_t plain{};
    wait(ucp_tag_send_nbx(endpoint_, data, bytes, 1, &plain));
  }
  void recv(float* data, size_t bytes) {
    ucp_request_param_t plain{};
    wait(ucp_tag_recv_nbx(worker_, data, bytes, 1, ~ucp_tag_t{0}, &plain));
  }
  /// Returns when the other rank has the bytes.
  void put(const float* data, size_t bytes) {
    ucp_request_param_t plain{};
    void* put = ucp_put_nbx(endpoint_, data, bytes, target_, key_, &plain);
    wait(ucp_ep_flush_nbx(endpoint_, &plain));
    wait(put);
  }
  /// Makes progress until the other rank is here too. A put over TCP ends only if its target makes
  /// progress.
  void meet() {
    ucp_request_param_t plain{};
    char here = 0, there = 0;
    void* sent = ucp_tag_send_nbx(endpoint_, &here, 1, 2, &plain);
    wait(ucp_tag_recv_nbx(worker_, &there, 1, 2, ~ucp_tag_t{0}, &plain));
    wait(sent);
  }

 private:
  void wait(void* request) {
    if (!UCS_PTR_IS_PTR(request)) return check(UCS_PTR_RAW_STATUS(request), "transfer");
    ucs_status_t status;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
      ucp_worker_progress(worker_);
    ucp_request_free(request);
    check(status, "transfer");
  }
  // Returns the other rank's text, of any length.
  static std::string exchange(ForkTeam& team, const std::string& own) {
    std::string theirs;
    const auto other = static_cast<size_t>(1 - team.rank());
    const auto length = static_cast<size_t>(team.max(static_cast<double>(own.size())));
    for (size_t at = 0; at < length; at += ForkTeam::kPieceBytes)
      theirs += team.exchange(at < own.size() ? own.substr(at, ForkTeam::kPieceBytes) : "")[other];
    return theirs;
  }

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  ucp_mem_h memory_ = nullptr;
  uint64_t target_ = 0;
  ucp_rkey_h key_ = nullptr;
};

void run_case(const Flags& flags, ForkTeam& team, const std::string& folder) {
  const auto sizes = parse_sizes(flags.text("bytes"), flags.whole("factor"));
  const auto& kind = flags.case_name();
  RawUcx raw(team, flags.whole("errors") != 0, flags.text("variant") != "tcp",
             *std::max_element(sizes.begin(), sizes.end()));
  const auto comm = make_communicator(team, folder, "ucx");
  const bool is_root = team.rank() == 0;
  const bool is_allreduce = kind == "allreduce";
  const bool is_arena = is_allreduce && flags.text("way") == "arena";
  const auto own = Pattern::of_rank(team.rank()),
             expected = is_allreduce ? Pattern::reduced(2) : Pattern::of_rank(0);
  for (const auto bytes : sizes) {
    const int64_t count = bytes / 4;
    const auto name = "x" + std::to_string(bytes);
    // Tutti uses private memory or the backend's shared memory. The direct calls send private
    // memory.
    const auto data = make_buffer(count);
    std::unique_ptr<GradientArena> arena;
    if (is_arena)
      arena =
          std::make_unique<GradientArena>(*comm, std::vector<GradientArena::Array>{{name, {count}}},
                                          ReduceOptions{.op = ReduceOp::sum});
    auto* const memory = arena ? reinterpret_cast<float*>((*arena)[name].data()) : data.get();
    const std::span values(memory, static_cast<size_t>(count));
    const auto ours = [&] {
      if (kind == "broadcast")
        comm->broadcast_blocking(name, values, 0);
      else if (arena)
        arena->ready(name), arena->wait();
      else if (is_allreduce && flags.text("way") == "named")
        comm->allreduce(name, values, ReduceOp::sum).wait();
      else if (is_allreduce)
        comm->allreduce_blocking(name, values, ReduceOp::sum);
      else if (is_root)
        comm->send(name, values, 1).wait();
      else
        comm->recv(name, values, 0).wait();
    };
    const auto theirs = [&] {
      const auto length = static_cast<size_t>(bytes);
      if (is_allreduce)
        raw.put(data.get(), length);
      else if (is_root)
        raw.send(data.get(), length);
      else
        raw.recv(data.get(), length);
    };
    own.fill(memory, count);
    team.barrier();
    ours();
    const auto wrong = expected.count_wrong(memory, count);
    std::fill(values.begin(), values.end(), 0.0f);  // sums of zeros stay zero
    auto row = measure_pairs(team, flags, ours, theirs, [&] { raw.meet(); });
    row.case_name = "ucx." + kind;
    row.way = flags.text("way");
    row.bytes = bytes;
    row.transport = flags.text("variant");
    row.wrong = team.sum(wrong);
    if (is_root) print(row);
  }
}

int run(int argc, char** argv) {
  auto defaults = pair_flags();
  defaults["errors"] = "1";     // 0: UCX's default, which does not notice a dead process
  defaults["variant"] = "shm";  // or tcp, as UCX_TLS says
  const Flags flags(argc, argv, defaults);
  if (flags.case_name() != "allreduce" && flags.case_name() != "broadcast" &&
      flags.case_name() != "sendrecv")
    throw std::invalid_argument("the cases are allreduce, broadcast and sendrecv, not " +
                                flags.case_name());
  const ScratchFolder folder;
  return ForkTeam::run(2, {}, static_cast<unsigned>(flags.whole("deadline")),
                       flags.whole("bind") != 0,
                       [&](ForkTeam& team) { run_case(flags, team, folder.path()); });
}

}  // namespace

}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  return tutti::benchmarks::run_program(tutti::benchmarks::run, argc, argv);
}
