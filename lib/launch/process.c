/* What every rank program wants from its process. */
#include <rankloom/launch.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

void loom_launch_prepare_process(void)
{
    /* A pipe or a log file behind stdout would hold back up to a page, which a SIGKILL loses. */
    setvbuf(stdout, NULL, _IOLBF, 0);

    /* torchrun ends ranks with SIGTERM and reads the exit status; a rank that inherited "ignore" would run into its SIGKILL. */
    signal(SIGTERM, SIG_DFL);

    /* A launcher that was killed sends nothing; Linux then does. Only where a launcher stands right above us: a shell that started ranks by
     * hand may end before them. The parent may die while we ask (it is not compared with 1: in a container the launcher may be that). */
    if (!getenv("TORCHELASTIC_RUN_ID"))
        return;
    pid_t launcher = getppid();
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 && getppid() != launcher)
        raise(SIGTERM);
}
