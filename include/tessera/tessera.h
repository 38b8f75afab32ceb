// Everything: the public API of Tessera. No header reached from here includes CUDA, MPI or NCCL.
#pragma once

#include "tessera/array.h"
#include "tessera/cluster.h"
#include "tessera/dim.h"
#include "tessera/dtype.h"
#include "tessera/error.h"
#include "tessera/graph.h"
#include "tessera/loops.h"
#include "tessera/machine.h"
#include "tessera/mesh.h"
#include "tessera/nn.h"
#include "tessera/op.h"
#include "tessera/ops.h"
#include "tessera/optim.h"
#include "tessera/session.h"
#include "tessera/trace.h"
