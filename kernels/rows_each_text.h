/* rows_each_text.h - the row ops whose text is the CPU's and the GPU's: a task takes whole rows, a lane every 32nd element. */
#include "kernels/rows_norm_text.h"
#include "kernels/rows_layer_text.h"
#include "kernels/rows_head_text.h"
#include "kernels/rows_act_text.h"
#include "kernels/rows_rope_text.h"
#include "kernels/rows_embed_text.h"
#include "kernels/rows_ce_text.h"
#include "kernels/rows_flat_text.h"
