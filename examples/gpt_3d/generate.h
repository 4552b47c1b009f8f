/* Text from the trained model, by the ranks as they stand. */
#ifndef GPT_3D_GENERATE_H
#define GPT_3D_GENERATE_H

#include "trainer.h"

/* Generates `count` tokens after the first few of the data, sampling with temperature 0.8 from a stream keyed by the seed; world rank 0 prints them. Collective. */
loom_status gpt_generate(gpt_trainer *trainer, int64_t count);

#endif
