"""The web dashboard behind `esper serve`: read-only pages over the run folders of one folder.

`access` who may ask, `guard` what every request passes, `places` which folders are served,
`listing` the list of runs, `feed` what the page of a run shows, `app` the routes, `server` the
process. Pages are plain ES modules in `static`, without a build step.
"""
