#include "tutti/backends/ucx/library.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <vector>

#include "tutti/backends/network/network_interface.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

// Guards the creation and the destruction of contexts. During both, UCX reads its tables and loads
// its modules. It does not promise that several threads may do that at the same time.
std::mutex& setup_mutex() {
  static std::mutex mutex;
  return mutex;
}

void check(const Context& context, ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return;
  // A container's /dev/shm is often small. If UCX finds no room there for its queue, it reports a
  // lack of memory. If it finds none for the first receive buffer, it reports a lack of resources.
  const std::string_view remedy =
      status == UCS_ERR_NO_MEMORY || status == UCS_ERR_NO_RESOURCE
          ? "it needs room in /dev/shm (df /dev/shm): give the container more (--shm-size), or "
            "another folder in UCX_POSIX_DIR"
          : "its own log says more with UCX_LOG_LEVEL=info";
  throw Error(ErrorCode::unavailable, fmt::format("rank {}: UCX cannot {}: {}; {}", context.rank,
                                                  what, ucs_status_string(status), remedy))
      .with_rank(context.rank);
}

bool is_rdma_device(const std::string& name) {
  const auto device = split_text(name, ':').front();
  struct stat status {};
  return device.find('/') == device.npos &&
         ::stat(("/sys/class/infiniband/" + device).c_str(), &status) == 0;
}

// Returns the name by which UCX knows the device of Context::network_interface. UCX takes an
// interface or an RDMA device, but no address.
std::string device_name(const Context& context) {
  const auto& wanted = context.network_interface;
  if (is_rdma_device(wanted)) return wanted;
  try {
    return named_interface(wanted, interface_addresses(), " (nor an RDMA device such as mlx5_0:1)")
        .interface;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("rank {}: {}", context.rank, error.what()))
        .with_rank(context.rank);
  }
}

bool all_on_one_host(const Context& context) {
  const auto hosts = context.hosts();
  return std::all_of(hosts.begin(), hosts.end(), [](int host) { return host == 0; });
}

// Returns whether any two ranks of one machine have separate networks, as in containers.
bool are_hosts_on_one_machine(const Context& context) {
  const auto& places = context.places;
  return std::any_of(places.begin(), places.end(), [&](const Place& one) {
    return std::any_of(places.begin(), places.end(), [&](const Place& other) {
      return one.machine == other.machine && one.host != other.host;
    });
  });
}

// Returns whether a list of transports includes shared memory. The list has the form of UCX_TLS.
bool uses_shared_memory(const std::string& transports) {
  constexpr std::array<std::string_view, 7> kNames{"all",   "sm",   "shm",  "mm",
                                                   "posix", "sysv", "xpmem"};
  const auto has_any = [&](const std::vector<std::string>& words) {
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
      return std::find(kNames.begin(), kNames.end(), word) != kNames.end();
    });
  };
  if (!transports.starts_with('^')) return has_any(split_text(transports, ','));
  return !has_any(split_text(transports.substr(1), ','));
}

// Returns the text that `print` writes to a file.
template <class Print>
std::string printed(Print print) {
  char* text = nullptr;
  size_t bytes = 0;
  std::FILE* file = ::open_memstream(&text, &bytes);
  if (!file) return {};
  print(file);
  std::fclose(file);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  return {text, bytes};
}

class Config {
 public:
  explicit Config(const Context& context) : context_(context) {
    check(context, ucp_config_read(nullptr, nullptr, &config_), "read its configuration");
  }
  ~Config() { ucp_config_release(config_); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;
  void set(const char* name, const std::string& value) {
    check(context_, ucp_config_modify(config_, name, value.c_str()),
          fmt::format("set {} to {}", name, value));
  }
  /// Returns the value of a variable, as UCX finds it in its environment, its files or its
  /// defaults.
  std::string get(const std::string& name) const {
    const auto text = printed([&](std::FILE* file) {
      ucp_config_print(config_, file, nullptr, UCS_CONFIG_PRINT_CONFIG);
    });
    for (const auto& line : split_text(text, '\n'))
      if (line.starts_with("UCX_" + name + "=")) return line.substr(name.size() + 5);
    return {};
  }
  const ucp_config_t* value() const { return config_; }

 private:
  const Context& context_;
  ucp_config_t* config_ = nullptr;
};

}  // namespace

UcxContext::UcxContext(const Context& context) {
  const std::lock_guard lock(setup_mutex());
  Config config(context);
  // On one host the end of a process is noticed immediately. Keepalive messages would only wake
  // sleeping threads.
  config.set("KEEPALIVE_INTERVAL", all_on_one_host(context) ? "inf" : "1s");
  // Hosts on one machine must not share memory through UCX: a rank could not wake the sleeping
  // thread of a rank on another host. So UCX uses network sockets between them.
  if (are_hosts_on_one_machine(context) && config.get("TLS") == "all") config.set("TLS", "^shm");
  // Without MM_ERROR_HANDLING UCX assumes that shared memory cannot report errors, and silently
  // uses TCP. (UCX does not know the names POSIX_ERROR_HANDLING and SYSV_ERROR_HANDLING here.) If
  // no shared memory may be used, UCX would report the setting as a mistake.
  if (uses_shared_memory(config.get("TLS"))) config.set("MM_ERROR_HANDLING", "y");
  if (!context.network_interface.empty()) config.set("NET_DEVICES", device_name(context));

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                      UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  params.estimated_num_eps = static_cast<size_t>(context.size);
  params.name = "tutti";
  params.mt_workers_shared = 1;  // other threads map and unmap memory
  check(context, ucp_init(&params, config.value(), &context_), "start");
}

UcxContext::~UcxContext() {
  const std::lock_guard lock(setup_mutex());
  ucp_cleanup(context_);
}

UcxWorker::UcxWorker(const Context& context) : context_(std::make_shared<UcxContext>(context)) {
  const std::lock_guard lock(setup_mutex());
  try {
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check(context, ucp_worker_create(context_->get(), &params, &worker_), "create its worker");
    check(context, ucp_worker_get_efd(worker_, &descriptor_), "wake a thread that sleeps");
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    check(context, ucp_worker_get_address(worker_, &address, &bytes), "get its address");
    address_.assign(reinterpret_cast<const char*>(address), bytes);
    ucp_worker_release_address(worker_, address);
  } catch (...) {
    if (worker_) ucp_worker_destroy(worker_);
    throw;
  }
}

UcxWorker::~UcxWorker() {
  const std::lock_guard lock(setup_mutex());
  ucp_worker_destroy(worker_);
}

// Returns the transports that an endpoint uses. UCX 1.13 only prints them, one line per lane:
//   #                 lane[0]:  2:posix/memory.0 md[1]      -> md[1]/posix/sysdev[255]  am am_bw#0
std::string transports_of(ucp_ep_h endpoint) {
  const auto text = printed([&](std::FILE* file) { ucp_ep_print_info(endpoint, file); });
  std::vector<std::string> names;
  for (const auto& line : split_text(text, '\n')) {
    const auto lane = line.find("lane[");
    const auto begin =
        lane == line.npos ? lane : line.find_first_not_of(" ", line.find(':', lane) + 1);
    if (begin == line.npos) continue;
    const auto colon = line.find(':', begin);
    const auto slash = line.find('/', begin);
    if (colon == line.npos || slash == line.npos || slash < colon) continue;
    const auto name = line.substr(colon + 1, slash - colon - 1);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names.empty() ? "unknown" : fmt::format("{}", fmt::join(names, ", "));
}

std::string ucx_version() { return ucp_get_version_string(); }

}  // namespace tutti
