#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/backends/store.h"
#include "tutti/base/log.h"
#include "tutti/collectives/collective.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

struct Probe;  // backends/backend.h

/// The store of tutti-run, if it started this process. tutti-run reads in it which rank left
/// because of an error. The fields are set even if the ranks of this communicator meet in another
/// store. An empty url means that there is no such store.
struct LauncherStore {
  std::string url = {};     // address of the store
  std::string secret = {};  // secret of the store
  int rank = -1;            // the rank by which tutti-run knows this process
};

/// Every setting of the library. Communicator::create completes the options that a program gives. A
/// field that the program set keeps its value. A field with its default value takes the value of
/// the launcher or of its variable. Invalid values and unknown TUTTI_ variables throw
/// Error(invalid_argument), which names the variable, its value, the valid values and the nearest
/// name. To keep a default although its variable is set, begin with from_environment().
struct Options {  // each field has an initializer, so that {.backend = "tcp"} gives no warning
  // The identity of this rank. -1 takes the value of tutti-run, mpirun, srun or torchrun; without a
  // launcher this is rank 0 of 1. If size is 1, or the program sets both, no launcher is asked.
  int rank = -1;       // TUTTI_RANK
  int size = -1;       // TUTTI_SIZE
  int local_rank = 0;  // TUTTI_LOCAL_RANK
  int local_size = 1;  // TUTTI_LOCAL_SIZE
  // These fields describe the process, whose rank in this communicator may be another one.
  // launched_as is the rank that the launcher gave to the process and names when the process dies
  // (-1: the same as `rank`). incarnation is the number of times that the launcher had started this
  // rank before.
  int launched_as = -1;  // filled from the environment
  int incarnation = 0;   // TUTTI_INCARNATION: set by a launcher that restarts a rank
  // Source of rank and size: "tutti-run", "Open MPI", "none", "explicit" (the program). Empty means
  // that the environment has not been read yet. A program that sets "explicit" prevents reading it.
  std::string launcher = {};

  // The store in which ranks find each other. `store` is "tcp://host:port" or "file:///folder" (a
  // folder that does not exist yet, or into which only this user may write). It is empty if there
  // is only one rank. With serve_store, rank 0 itself serves the TCP store at that address, until
  // its process ends.
  std::string store = {};    // TUTTI_STORE
  bool serve_store = false;  // TUTTI_SERVE_STORE: rank 0 serves the store, because no launcher does
  std::shared_ptr<Store> store_object = {};  // set only in code, for ranks that are threads
  std::string job = "job";                   // TUTTI_JOB: separates jobs that share a store
  std::string secret = {};  // TUTTI_SECRET_FD (a descriptor) or TUTTI_SECRET; erased when read
  std::string network_interface = {};  // TUTTI_INTERFACE: name or address; empty: automatic
  // TUTTI_TCP_SOCKETS: number of connections between two ranks. Several help if the network limits
  // the speed of each.
  int tcp_sockets = 1;
  // TUTTI_TCP_CONGESTION: kernel name of the congestion control between ranks ("bbr"). Empty: cubic
  // over loopback, where it is faster; otherwise the host's default.
  std::string tcp_congestion = {};
  std::string host = {};  // TUTTI_HOST: ranks with the same text count as one host

  std::string backend = "auto";  // TUTTI_BACKEND: auto, a name listed by tutti-doctor, or shm+ucx
  // TUTTI_BACKEND_PATH: folders with plugins, separated by colons. They are searched before the
  // folder of libtutti.so.
  std::string backend_path = {};
  // TUTTI_BACKEND_LIBRARY: file of the library that a plugin itself loads (only nccl). Empty: the
  // library's usual name.
  std::string backend_library = {};
  std::string nccl_config = {};  // TUTTI_NCCL_CONFIG: settings of NCCL's communicators, a=1,b=2
  std::string algorithms = {};   // TUTTI_ALGORITHMS: score string, see Chooser
  // TUTTI_PROBE: how ranks on several hosts get the performance figures of their network. "auto":
  // from a saved file, or by a measurement that is then saved. "always": by a measurement that is
  // saved. "off": from a fixed table. A path: like "auto", with this file instead of one in
  // probe_folder.
  std::string probe = "auto";
  std::string probe_folder = {};  // from XDG_CACHE_HOME or HOME; empty: nothing is saved
  Determinism determinism = Determinism::fastest;  // TUTTI_DETERMINISM: fastest, run, rank_order
  int64_t segment_bytes = 1 << 20;                 // TUTTI_SEGMENT_BYTES: size of pipelined pieces

  int64_t fusion_bytes = 4 << 20;      // TUTTI_FUSION_BYTES: size of a bucket; 0: no fusion
  int64_t partition_bytes = 16 << 20;  // TUTTI_PARTITION_BYTES: larger tensors are cut into pieces
  int64_t cache_capacity = 4096;       // TUTTI_CACHE_CAPACITY: number of names that may have an id
  bool replay = true;                  // TUTTI_REPLAY: repeated steps need no negotiation
  int replay_after = 3;                // TUTTI_REPLAY_AFTER: equal steps before they are replayed
  /// TUTTI_MIXED_DEVICES: the tensors of one name may be in host memory on one rank and on a GPU on
  /// another. All of them then travel through host memory.
  bool mixed_devices = false;
  /// TUTTI_CHECK_MEMORY: for debugging. A tensor whose memory is freed before its Work is done
  /// causes an error instead of a crash or wrong data. base/process/memory_check.h lists what is
  /// detected.
  bool check_memory = false;

  double connect_timeout = 60;  // TUTTI_CONNECT_TIMEOUT, seconds to find and connect all ranks
  double peer_timeout = 10;  // TUTTI_PEER_TIMEOUT, seconds without an answer until a rank is silent
  double operation_timeout =
      0;                     // TUTTI_OPERATION_TIMEOUT, seconds; 0: late ranks are only reported
  double stall_warning = 2;  // TUTTI_STALL_WARNING, seconds until the first stall report
  double close_timeout = 5;  // TUTTI_CLOSE_TIMEOUT, seconds for the goodbye, or for a callback

  std::string timeline = {};               // TUTTI_TIMELINE: file for the Chrome trace; empty: none
  LogLevel log_level = LogLevel::warning;  // TUTTI_LOG: error, warning, info, debug
  LogSink log = {};  // set only in code; null: standard error; must not call into Tutti

  /// Set only in code, for tests and tools that must act at a certain point. The thread that runs
  /// the engine calls it with the name of each point that this rank reaches ("rendezvous",
  /// "negotiation", "pack", "transfer", "idle"). Meanwhile this rank answers no peer. So if a call
  /// takes longer than peer_timeout, the rank counts as silent.
  std::function<void(std::string_view point)> observer = {};
  void observe(std::string_view point) const {
    if (observer) observer(point);
  }

  LauncherStore launcher_store = {};  // filled from the environment

  /// Maps a field's environment variable to the source of its value: "TUTTI_RANK" ->
  /// "OMPI_COMM_WORLD_RANK". The functions that read the environment fill it, and
  /// describe_options() reads it. A field that is listed counts as set even if it holds its
  /// default.
  std::map<std::string, std::string> sources = {};

  /// Returns complete_options({}): the settings of this process, for reading or for changing before
  /// create().
  static Options from_environment();
  /// Returns the options of one rank of `size` in this process. The ranks meet in a shared memory
  /// store. The environment is not read.
  static Options thread_rank(int rank, int size, std::shared_ptr<Store> store);
};

/// Returns `given` with its unset fields filled from the launcher and the TUTTI_ variables. If
/// `launcher` is set, the options are already complete and come back unchanged. If the launcher
/// gives no store, all ranks must call this function. Rank 0 then starts to serve a store until its
/// process ends, and sends the address to the other ranks within connect_timeout. If the ranks meet
/// in a store that the program made and there is no secret, the first rank leaves a random one in
/// it. This secret is as safe as that store. The function erases the secret from the environment
/// and remembers it for later calls. No other thread may change the environment meanwhile.
Options complete_options(Options given);

/// Throws Error(invalid_argument) if complete settings contradict each other.
void check_options(const Options& options);

/// Parses Options::probe. Throws Error(invalid_argument) if the text is invalid.
Probe probe_settings(const Options& options);

/// Returns the folders of Options::backend_path.
std::vector<std::string> backend_folders(const Options& options);

/// One line of `tutti-run --options`.
struct OptionRow {
  std::string variable;       // TUTTI_...
  std::string unit;           // unit of the value
  std::string default_value;  // default in the form in which the variable is set
  std::string value;          // current value
  std::string source;         // "default", "environment", a launcher
  std::string meaning;        // a few words
};
/// Returns one row per setting.
std::vector<OptionRow> describe_options(const Options& options);

/// Settings of one allreduce or reduce_scatter. They must be equal on all ranks.
struct ReduceOptions {
  ReduceOp op = ReduceOp::average;  // average: the mean over the ranks
  double prescale = 1.0;            // applied before the reduction
  double postscale = 1.0;           // applied after the reduction (for average, after its division)
  std::optional<DataType> wire = std::nullopt;  // float type in which floats are sent, such as bf16
  int priority = 0;  // higher goes first among tensors that are ready together; equal on all ranks
};

}  // namespace tutti
