"""The fifty tasks and their step limits.

Source: ``robotwin/configs/task/_eval_step_limit.yml`` of rlinf-robotwin-runtime 0.1.3 (MIT, Tianxing Chen).
"""

from __future__ import annotations

import difflib

STEP_LIMITS = {
    **dict.fromkeys(
        (
            "adjust_bottle",
            "beat_block_hammer",
            "click_alarmclock",
            "click_bell",
            "grab_roller",
            "lift_pot",
            "move_can_pot",
            "move_pillbottle_pad",
            "move_playingcard_away",
            "move_stapler_pad",
            "pick_diverse_bottles",
            "pick_dual_bottles",
            "place_a2b_left",
            "place_a2b_right",
            "place_container_plate",
            "place_fan",
            "place_mouse_pad",
            "place_object_scale",
            "place_object_stand",
            "place_phone_stand",
            "press_stapler",
            "rotate_qrcode",
            "stamp_seal",
            "turn_switch",
        ),
        400,
    ),
    **dict.fromkeys(("place_bread_skillet", "place_burger_fries", "place_empty_cup", "place_shoe", "scan_object"), 500),
    **dict.fromkeys(("dump_bin_bigbin", "handover_mic", "place_dual_shoes"), 600),
    **dict.fromkeys(
        (
            "open_laptop",
            "place_bread_basket",
            "place_can_basket",
            "place_object_basket",
            "put_object_cabinet",
            "shake_bottle",
            "shake_bottle_horizontally",
        ),
        700,
    ),
    **dict.fromkeys(("handover_block", "place_cans_plasticbox", "stack_blocks_two"), 800),
    **dict.fromkeys(("hanging_mug", "stack_bowls_two"), 900),
    **dict.fromkeys(("blocks_ranking_rgb", "blocks_ranking_size", "stack_blocks_three", "stack_bowls_three"), 1200),
    "open_microwave": 1500,
    "put_bottles_dustbin": 1700,
}
"""Env steps of an episode, by task."""


def unknown(name: str) -> str:
    """Say that there is no such task, and which one may have been meant."""
    close = difflib.get_close_matches(name, STEP_LIMITS, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}?" if close else f"There is: {', '.join(sorted(STEP_LIMITS))}"
    return f"task: RoboTwin has no task {name!r}. {hint}"
