"""Lets made-up requests get further than the door: keys that nobody used before, and the business that the app may use."""

import itertools

import schemathesis

BUSINESS = 900
LONGEST_KEY = 200
NUMBERS = itertools.count()


@schemathesis.hook
def before_call(context, case, kwargs):
    # One key with two requests is refused, and made-up keys are few.
    key = case.headers.get("Idempotency-Key") if case.headers else None
    if isinstance(key, str) and 0 < len(key) < LONGEST_KEY:
        case.headers["Idempotency-Key"] = "{}-{}".format(key, next(NUMBERS))
    body = case.body
    if isinstance(body, dict):
        if isinstance(body.get("bk_biz_id"), int) and body["bk_biz_id"] > 0:
            body["bk_biz_id"] = BUSINESS
        if body.get("bk_scope_type") == "biz" and "bk_scope_id" in body:
            body["bk_scope_id"] = str(BUSINESS)
