#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/backends/channel.h"
#include "tutti/backends/store.h"
#include "tutti/base/cpp20.h"
#include "tutti/base/deadline.h"
#include "tutti/base/log.h"
#include "tutti/collectives/collective.h"
#include "tutti/collectives/executor.h"
#include "tutti/collectives/region.h"
#include "tutti/collectives/thresholds.h"
#include "tutti/tensor/device.h"

namespace tutti {

/// The location of a rank, which the ranks publish through the Store.
struct Place {
  std::string host;             // network namespace and boot id, or Options::host
  std::string host_name;        // name of the rank's host in messages to the user
  int pid = 0;                  // process id of the rank in its own PID namespace
  int world_rank = 0;           // rank in the job; differs in a split or shrunk communicator
  std::vector<int> cores = {};  // cores on which the rank's process may run
  std::string machine = {};     // boot id of the machine; several hosts (containers) may share it
  // index of the rank among the job's ranks on its host. If it is -1 (unknown), the index among
  // this communicator's ranks on that host is used
  int local_rank = -1;
  int incarnation = 0;  // how often this world rank was launched before
  /// The device that the rank's process used before it made the communicator
  /// (DeviceRuntime::identity). Empty if it used none or several.
  std::string device = {};
  int64_t pid_space = 0;  // inode of the rank's PID namespace; each container has its own

  /// Returns whether a process id means the same process for both ranks.
  bool shares_pids(const Place& other) const {
    return machine == other.machine && pid_space == other.pid_space;
  }
};

struct BackendPlugin;

/// States when a backend that spans several hosts measures the network, and where it keeps the
/// figures.
struct Probe {
  enum class Mode : uint8_t { off, when_unknown, always };
  Mode mode = Mode::off;  // when the network is measured
  std::string file = {};  // keeps the figures; empty: they are not kept
};

/// An object that a communicator's backend hands to the backend of a communicator that is split off
/// from it; see Backend::split().
class Inheritance {
 public:
  virtual ~Inheritance() = default;
};

/// The settings that only some backends know. Maps the name of each variable to its value.
using Settings = std::map<std::string, std::string, std::less<>>;

/// The arguments of a backend's connect(). The call borrows them, except the store, which is
/// shared.
struct Context {
  std::string name;               // the name that chose the backend: "tcp", "shm+ucx"
  int rank = 0;                   // this rank's number in this communicator
  int size = 1;                   // number of ranks of this communicator
  std::shared_ptr<Store> store;   // holds only keys of this communicator and epoch
  std::vector<Place> places;      // one entry per rank
  std::string secret;             // the job's secret; empty: none (threads of one process)
  std::string network_interface;  // an interface such as eth0, or an address; "": any
  Deadline deadline = Deadline::after(60);         // deadline for connecting all ranks
  Determinism determinism = Determinism::fastest;  // which results must have equal bits
  std::string algorithms;                          // the user's scores for the chooser
  ExecutorOptions executor;                        // segment size and similar settings
  Probe probe;                                     // how the network between hosts is measured
  Thresholds thresholds;                           // thresholds for the chooser, from a probe
  Settings settings;                               // settings of single backends; see setting()
  LogSink log;                                     // any thread may call it
  /// What split() returned in the backend of the communicator that this one is split off from. Null
  /// if split() returned null, or if this communicator is not a split.
  std::shared_ptr<Inheritance> inheritance;
  /// The built-in backends, and the backends that the name or the scores ask for. A composite
  /// backend finds its parts among them.
  std::span<const BackendPlugin* const> plugins;
  /// Returns the plugin for the name `called` (for "shm+ucx": hierarchical), or null if there is
  /// none.
  const BackendPlugin* plugin(std::string_view called) const;
  std::vector<int> hosts() const;  // by rank: index of its host, from 0
  /// Returns the value, as text, of a setting that only some backends know: "4" for
  /// "TUTTI_TCP_SOCKETS". The library has already checked the value. Throws
  /// Error(invalid_argument), which names the setting, if this library does not hand it to
  /// backends.
  const std::string& setting(std::string_view variable) const;
};

/// A device whose memory a backend uses directly (see Launch::device), and the operations that the
/// backend runs there.
struct DeviceService {
  Device device;
  std::vector<CollectiveKind> kinds = {};  // collectives that the backend runs there
  std::vector<DataType> dtypes = {};       // element types of these collectives
  std::vector<ReduceOp> ops = {};          // operators of these collectives, for kinds that reduce
};

/// The abilities of a backend.
struct Capabilities {
  std::string name;           // for example "shm"
  bool across_hosts = false;  // whether ranks may be on several hosts
  // how an external library sends data to the peers. If empty, Transport::route() returns it
  std::string route = {};
  std::vector<DeviceService> devices = {};                           // empty: host memory only
  bool serves(CollectiveKind, DataType, ReduceOp) const;             // in host memory
  bool serves_on(Device, CollectiveKind, DataType, ReduceOp) const;  // in a device's memory
};

/// The connection of a rank to its peers. start() posts an operation and does not wait. Any number
/// of operations may run at the same time. The ranks may start them in different orders; the calls
/// with the same Launch::tag form one operation.
class Backend : public Progressive {
 public:
  virtual Capabilities capabilities() const = 0;                              // never changes
  virtual std::unique_ptr<Region> allocate(size_t bytes, Device device) = 0;  // memory for buckets
  /// Returns whether this memory is in a Region that the peers can access; see Launch::windows. Any
  /// thread may call it.
  virtual bool shares(const std::byte*, size_t) const { return false; }
  /// Returns whether start() handles the elements of this operation itself. All ranks must get the
  /// same result. The meaning of the result depends on Launch::edges:
  ///   - With edges, true means that start() packs into memory of its own and ignores the input and
  ///     output of the Collective. False means that the caller provides a bucket as input and
  ///     output.
  ///   - Without edges (an operation of all ranks, or a blocking call with a name), true means that
  ///     start() runs the operation in Launch::queue.
  virtual bool packs_itself(const Collective&, const Launch&) const { return false; }
  /// Posts the operation and never waits. Operation::advance() later reports that it has completed
  /// or failed.
  virtual OperationPtr start(const Collective& collective, const Launch& launch) = 0;
  /// Returns the traffic that this rank would send for this operation, without running it. Returns
  /// an empty Traffic if a library does not report it.
  virtual Traffic predict(const Collective&, const Launch&) { return {}; }
  /// Returns whether pending operations run on threads of a library. These threads need the cores,
  /// so a waiting thread sleeps immediately instead of spinning.
  virtual bool works_elsewhere() const { return false; }
  /// Returns the algorithm that start() would run, for the timeline.
  virtual std::string_view algorithm(const Collective& collective) const = 0;
  /// Returns the name of the backend that start() would use, for the timeline. A composite backend
  /// returns the name of the backend that it chooses.
  virtual std::string name_for(const Collective&) const { return capabilities().name; }
  /// Returns the ranks that are known not to have started the oldest operation of this queue yet.
  virtual std::vector<int> missing(int) const { return {}; }
  /// Returns the Transport that carries the control messages between ranks, or null if a library
  /// offers none.
  virtual Transport* transport() = 0;
  virtual TransportCounters counters() { return transport()->counters(); }  // the traffic so far
  /// Returns an object from which the backend of a split communicator can be made. That
  /// communicator has the ranks of `color`, ordered by their keys. A rank with color < 0 joins
  /// none. All ranks call split() in the same order, on the thread that splits, while the engine
  /// may run on another thread. The Context is that of this communicator, except that only this
  /// call uses its store. A failure is reported later, by the connect() that gets the object.
  virtual std::shared_ptr<Inheritance> split(const Context&, int /*color*/, int /*key*/) {
    return nullptr;
  }
};

/// The version of the binary interface of plugins. It grows whenever this header, or a header that
/// it includes, changes in a way that breaks compiled plugins.
inline constexpr uint32_t kBackendAbi = 21;

/// The one record that a backend's folder exports. Composite backends use two of its functions:
/// `open` makes channels to the given peers, and `transport` makes a Transport between all ranks.
struct BackendPlugin {
  uint32_t abi = kBackendAbi;  // the first member, so that every version can read it
  const char* name = "";       // the value of TUTTI_BACKEND that chooses the backend
  const char* summary = "";    // one line for tutti-doctor
  /// Connects this rank with all ranks, which find each other through Context::store, before the
  /// deadline. Any thread may call it.
  std::unique_ptr<Backend> (*connect)(const Context& context) = nullptr;
  /// Makes channels to these peers only. Null if the backend has no channels.
  std::vector<std::unique_ptr<Channel>> (*open)(const Context& context,
                                                std::span<const int> peers) = nullptr;
  /// Makes a Transport between all ranks. Null if the backend has none.
  std::unique_ptr<Transport> (*transport)(const Context& context) = nullptr;
  /// Returns the version of the library behind the backend, as text for the user. Null if there is
  /// no such library.
  std::string (*version)() = nullptr;
  /// True if the backend works on device memory. In a name such as nccl+tcp, such a backend is the
  /// inner level.
  bool works_on_devices = false;
};

/// The one symbol of a plugin (libtutti_backend_<name>.so), which defines it as
///   const BackendPlugin tutti::tutti_backend_plugin = {.name = "<name>", ...};
extern "C" const BackendPlugin tutti_backend_plugin;

/// Returns the built-in backends. CMake generates the list; see CMakeLists.txt.
std::span<const BackendPlugin* const> builtin_backends();
/// Returns a built-in backend or loads a plugin. A loaded plugin is never unloaded. Plugins are
/// searched for in `folders` and then in plugin_folder(). Throws Error(unavailable | version |
/// corrupt_data). The error says what was found instead and what to do.
const BackendPlugin& find_backend(std::string_view name, std::span<const std::string> folders = {});

/// The two backends in a name such as "shm+ucx": shared memory within a host, UCX between hosts.
struct Levels {
  std::string_view inner;  // backend within a host
  std::string_view cross;  // backend between hosts
};
/// Returns both levels, or nothing if the name has no plus sign.
std::optional<Levels> levels_of(std::string_view name);

/// Adds each counter of `more` to that of `sum`.
void add(TransportCounters& sum, const TransportCounters& more);

/// Makes a backend that runs our schedules over channels, as memory, shm, tcp and hierarchical do.
/// channels[peer] is null at peer == rank.
std::unique_ptr<Backend> make_stream_backend(const Context& context, std::string name,
                                             std::vector<std::unique_ptr<Channel>> channels);

/// Makes a backend that runs our schedules over any Transport, for example that of a library.
std::unique_ptr<Backend> make_transport_backend(const Context& context, std::string name,
                                                std::unique_ptr<Transport> transport);
/// Makes a Transport over channels. channels[rank] is null for this rank.
std::unique_ptr<Transport> make_stream_transport(int rank,
                                                 std::vector<std::unique_ptr<Channel>> channels);

}  // namespace tutti
