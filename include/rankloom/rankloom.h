/* Rankloom: everything public, in the order of the layers (docs/layers). */
#ifndef RANKLOOM_RANKLOOM_H
#define RANKLOOM_RANKLOOM_H

#include <rankloom/status.h>
#include <rankloom/dtype.h>
#include <rankloom/text.h>
#include <rankloom/config.h>
#include <rankloom/model.h>
#include <rankloom/ledger.h>
#include <rankloom/device.h>
#include <rankloom/launch.h>
#include <rankloom/topology.h>
#include <rankloom/host.h>
#include <rankloom/layout.h>
#include <rankloom/engine.h>
#include <rankloom/shard.h>
#include <rankloom/sizes.h>
#include <rankloom/schedule.h>
#include <rankloom/kernels.h>
#include <rankloom/comm.h>
#include <rankloom/mesh.h>
#include <rankloom/tp.h>
#include <rankloom/cp.h>
#include <rankloom/ep.h>
#include <rankloom/pp.h>
#include <rankloom/dp.h>
#include <rankloom/safetensors.h>
#include <rankloom/weights.h>
#include <rankloom/monitor.h>
#include <rankloom/probe.h>
#include <rankloom/planner.h>
#include <rankloom/forecast.h>
#include <rankloom/simulate.h>
#include <rankloom/emit.h>
#include <rankloom/goodput.h>

#endif
